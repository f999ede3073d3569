//! Layering: defaults < file < environment < flags. The defaults, serialized,
//! are the list of keys that exist and of their types.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{Config, ConfigError};

/// Variables that begin so belong to test tooling, never to the configuration.
const TEST_PREFIX: &str = "TIDEGATE_TEST_";
const PREFIX: &str = "TIDEGATE_";
/// What the client of the control endpoint reads: where it asks, and with which token.
/// The token is the server's too, so that one variable serves both.
const CONTROL_URL_VARIABLE: &str = "TIDEGATE_CONTROL_URL";
const CONTROL_TOKEN_VARIABLE: &str = "TIDEGATE_CONTROL_TOKEN";
/// Names the configuration file, where no flag does.
const FILE_VARIABLE: &str = "TIDEGATE_CONFIG";

/// What the command line sets.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--listen`
    pub listen: Option<String>,
    /// `--control-listen`
    pub control_listen: Option<String>,
    /// `--database`
    pub database: Option<String>,
    /// `--schema`
    pub schema: Option<PathBuf>,
    /// `--backfills`
    pub backfills: Option<PathBuf>,
    /// `--insecure-dev-auth`
    pub insecure_dev_auth: bool,
}

/// Everything a configuration is made from.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// `--config`
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Vec<(String, String)>,
    /// The command line.
    pub flags: Overrides,
}

impl Layers {
    /// The layers of this process.
    pub fn of_process(file: Option<PathBuf>, flags: Overrides) -> Self {
        Self {
            file,
            // A variable that is not text cannot be one of ours; `vars` would panic over it.
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            flags,
        }
    }

    /// Reads the layers and checks the result.
    ///
    /// # Errors
    /// The first thing wrong, naming key and origin.
    pub fn load(mut self) -> Result<Config, ConfigError> {
        // Environment order is arbitrary; errors should not be.
        self.environment.sort();
        let mut merged = Merged::defaults();
        let file = self.file.clone().or_else(|| {
            self.environment
                .iter()
                .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty())
                .map(|(_, value)| PathBuf::from(value))
        });
        if let Some(path) = file {
            merged.apply_file(&path)?;
        }
        for (name, value) in &self.environment {
            merged.apply_variable(name, value)?;
        }
        merged.apply_flags(&self.flags)?;
        merged.config.validate()?;
        Ok(merged.config)
    }
}

struct Merged {
    table: Table,
    config: Config,
}

impl Merged {
    fn defaults() -> Self {
        let config = Config::default();
        let table = Table::try_from(&config).unwrap_or_default();
        Self { table, config }
    }

    fn apply_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error
                .span()
                .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            ConfigError::Syntax {
                path: path.to_owned(),
                message: match line {
                    Some(line) => format!("line {line}: {}", error.message()),
                    None => error.message().to_owned(),
                },
            }
        })?;
        let origin = path.display().to_string();
        for (keys, value) in leaves(table) {
            self.set(&keys, value, &origin)?;
        }
        Ok(())
    }

    fn apply_variable(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let Some(key) = name.strip_prefix(PREFIX) else {
            return Ok(());
        };
        if [FILE_VARIABLE, CONTROL_URL_VARIABLE].contains(&name) || name.starts_with(TEST_PREFIX) {
            return Ok(());
        }
        let keys: Vec<String> = if name == CONTROL_TOKEN_VARIABLE {
            vec!["control".to_owned(), "token".to_owned()]
        } else {
            key.split("__").map(str::to_lowercase).collect()
        };
        // A variable is text; the default at its key says what it means.
        let value = match lookup(&self.table, &keys) {
            Some(Value::Integer(_)) => text.trim().parse().map(Value::Integer).ok(),
            Some(Value::Float(_)) => text.trim().parse().map(Value::Float).ok(),
            Some(Value::Boolean(_)) => match text.trim() {
                "true" | "1" => Some(Value::Boolean(true)),
                "false" | "0" => Some(Value::Boolean(false)),
                _ => None,
            },
            _ => None,
        }
        .unwrap_or_else(|| Value::String(text.to_owned()));
        self.set(&keys, value, name)
    }

    fn apply_flags(&mut self, flags: &Overrides) -> Result<(), ConfigError> {
        let mut set = |keys: &[&str], value: Value, origin: &str| {
            let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
            self.set(&keys, value, origin)
        };
        if let Some(listen) = &flags.listen {
            set(&["listen"], listen.clone().into(), "--listen")?;
        }
        if let Some(listen) = &flags.control_listen {
            let listen = listen.clone().into();
            set(&["control", "listen"], listen, "--control-listen")?;
        }
        if let Some(url) = &flags.database {
            set(&["database", "url"], url.clone().into(), "--database")?;
        }
        if let Some(file) = &flags.schema {
            let file = file.to_string_lossy().into_owned();
            set(&["schema", "file"], file.into(), "--schema")?;
        }
        if let Some(dir) = &flags.backfills {
            let dir = dir.to_string_lossy().into_owned();
            set(&["backfill", "dir"], dir.into(), "--backfills")?;
        }
        if flags.insecure_dev_auth {
            set(
                &["auth", "insecure_dev"],
                true.into(),
                "--insecure-dev-auth",
            )?;
        }
        Ok(())
    }

    fn set(&mut self, keys: &[String], value: Value, origin: &str) -> Result<(), ConfigError> {
        let key = keys.join(".");
        let Some(slot) = lookup_mut(&mut self.table, keys) else {
            return Err(ConfigError::UnknownKey {
                key,
                origin: origin.to_owned(),
            });
        };
        let wrong = |message: String| ConfigError::WrongValue {
            key: key.clone(),
            origin: origin.to_owned(),
            message,
        };
        // A whole number is a number.
        let value = match (&*slot, value) {
            (Value::Float(_), Value::Integer(whole)) => Value::Float(whole as f64),
            (_, value) => value,
        };
        if slot.type_str() != value.type_str() {
            return Err(wrong(format!("expected {}", article(slot.type_str()))));
        }
        *slot = value;
        self.config = self
            .table
            .clone()
            .try_into()
            .map_err(|error: toml::de::Error| {
                wrong(match key.as_str() {
                    "listen" => LISTEN_FORM.to_owned(),
                    _ => error.message().to_owned(),
                })
            })?;
        Ok(())
    }
}

/// What an address to listen on looks like.
const LISTEN_FORM: &str = "expected IP:PORT, like 127.0.0.1:8787, [::1]:8787 or 0.0.0.0:8787 for every \
     address of this machine; a host name is not looked up";

fn article(kind: &str) -> String {
    match kind {
        "integer" => "an integer".to_owned(),
        "array" => "an array".to_owned(),
        "boolean" => "true or false".to_owned(),
        "float" => "a number".to_owned(),
        other => format!("a {other}"),
    }
}

fn lookup<'a>(table: &'a Table, keys: &[String]) -> Option<&'a Value> {
    let (first, rest) = keys.split_first()?;
    let value = table.get(first)?;
    match (rest, value) {
        ([], Value::Table(_)) => None,
        ([], value) => Some(value),
        (rest, Value::Table(inner)) => lookup(inner, rest),
        _ => None,
    }
}

fn lookup_mut<'a>(table: &'a mut Table, keys: &[String]) -> Option<&'a mut Value> {
    let (first, rest) = keys.split_first()?;
    let value = table.get_mut(first)?;
    match (rest, value) {
        ([], Value::Table(_)) => None,
        ([], value) => Some(value),
        (rest, Value::Table(inner)) => lookup_mut(inner, rest),
        _ => None,
    }
}

/// Every non-table value with its path, and every empty table.
fn leaves(table: Table) -> Vec<(Vec<String>, Value)> {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), table)];
    while let Some((path, table)) = open.pop() {
        for (key, value) in table {
            let mut path = path.clone();
            path.push(key);
            match value {
                Value::Table(inner) if known_section(&path) => open.push((path, inner)),
                value => found.push((path, value)),
            }
        }
    }
    found
}

/// Whether the path is a section; anything else is set as a value, so that a
/// table where none belongs is reported by its name.
fn known_section(path: &[String]) -> bool {
    let defaults = Merged::defaults().table;
    matches!(path, [section] if matches!(defaults.get(section), Some(Value::Table(_))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LogFormat, Synchronous};

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tidegate.toml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn environment(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        variables
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    const DOCUMENTED: &str = include_str!("../../config/default.toml");

    #[test]
    fn the_documented_defaults_are_the_built_in_ones() {
        let documented: Config = toml::from_str(DOCUMENTED).unwrap();
        assert_eq!(documented, Config::default());
    }

    #[test]
    fn the_documentation_explains_every_key() {
        let documented: Table = DOCUMENTED.parse().unwrap();
        let mut keys = leaves(Merged::defaults().table);
        assert!(keys.len() > 25);
        keys.retain(|(path, _)| lookup(&documented, path).is_none());
        assert!(keys.is_empty(), "undocumented: {keys:?}");
        // A comment stands before each key.
        let lines: Vec<&str> = DOCUMENTED.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if line.contains(" = ") && !line.starts_with('#') {
                assert!(lines[at - 1].starts_with('#'), "no comment above {line}");
            }
        }
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let (_folder, path) = file(
            "listen = \"127.0.0.1:1\"\n[database]\nurl = \"sqlite:file.db\"\n[sqlite]\nsynchronous = \"normal\"\nreader_threads = 7\n[log]\nformat = \"json\"\n",
        );
        let config = Layers {
            file: Some(path),
            environment: environment(&[
                ("TIDEGATE_LISTEN", "127.0.0.1:2"),
                ("TIDEGATE_DATABASE__URL", "sqlite:env.db"),
                ("TIDEGATE_SQLITE__READER_THREADS", "9"),
                ("TIDEGATE_AUTH__INSECURE_DEV", "true"),
                ("TIDEGATE_CONTROL_TOKEN", "t0ken-of-operators"),
                ("TIDEGATE_CONTROL_URL", "http://elsewhere"),
                ("PATH", "/bin"),
                ("TIDEGATE_TEST_POSTGRES", "postgres://x"),
            ]),
            flags: Overrides {
                listen: Some("127.0.0.1:3".to_owned()),
                ..Overrides::default()
            },
        }
        .load()
        .unwrap();
        assert_eq!(config.listen.port(), 3);
        assert_eq!(config.database.url, "sqlite:env.db");
        assert_eq!(config.sqlite.reader_threads, 9);
        assert_eq!(config.sqlite.synchronous, Synchronous::Normal);
        assert_eq!(config.log.format, LogFormat::Json);
        assert!(config.auth.insecure_dev);
        assert_eq!(config.control.token.get(), Some("t0ken-of-operators"));
        assert_eq!(config.limits, Config::default().limits);
    }

    #[test]
    fn the_environment_can_name_the_file() {
        let (_folder, path) = file("[limits]\nmax_operations = 7\n");
        let config = Layers {
            environment: environment(&[("TIDEGATE_CONFIG", path.to_str().unwrap())]),
            ..Layers::default()
        }
        .load()
        .unwrap();
        assert_eq!(config.limits.max_operations, 7);
    }

    #[track_caller]
    fn refused(text: &str, variables: &[(&str, &str)]) -> String {
        let (_folder, path) = file(text);
        let error = Layers {
            file: Some(path),
            environment: environment(variables),
            flags: Overrides::default(),
        }
        .load()
        .unwrap_err()
        .to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    #[test]
    fn unknown_keys_are_errors_that_name_the_key() {
        assert!(refused("[limits]\nmax_bdy = 1\n", &[]).contains("limits.max_bdy"));
        assert!(refused("[limit]\nmax_body_bytes = 1\n", &[]).contains("limit "));
        assert!(refused("lisen = \"x\"\n", &[]).contains("lisen"));
        let error = refused("", &[("TIDEGATE_LIMITS__NOPE", "1")]);
        assert!(error.contains("limits.nope") && error.contains("TIDEGATE_LIMITS__NOPE"));
        assert!(refused("", &[("TIDEGATE_LISTN", "x")]).contains("TIDEGATE_LISTN"));
    }

    #[test]
    fn wrong_values_are_errors_that_name_the_key() {
        assert!(
            refused("[limits]\nmax_operations = \"many\"\n", &[]).contains("limits.max_operations")
        );
        assert!(refused("[limits]\nmax_operations = -1\n", &[]).contains("limits.max_operations"));
        assert!(refused("limits = 3\n", &[]).contains("limits"));
        assert!(refused("[sqlite]\nsynchronous = \"off\"\n", &[]).contains("sqlite.synchronous"));
        let named = refused("listen = \"localhost:8787\"\n", &[]);
        assert!(
            named.contains("listen") && named.contains("127.0.0.1:8787"),
            "{named}"
        );
        assert!(
            refused("", &[("TIDEGATE_SQLITE__READER_THREADS", "x")]).contains("READER_THREADS")
        );
        assert!(refused("[limits]\nmax_operations = 0\n", &[]).contains("limits.max_operations"));
        assert!(refused("[limits\n", &[]).contains("line 1"));
    }

    #[test]
    fn a_short_control_token_is_refused_by_key_and_minimum_and_never_shown() {
        let told = [
            refused("[control]\ntoken = \"hunter2\"\n", &[]),
            refused("", &[("TIDEGATE_CONTROL_TOKEN", "hunter2")]),
            refused("", &[("TIDEGATE_CONTROL__TOKEN", "hunter2")]),
        ];
        for error in told {
            assert!(error.contains("control.token"), "{error}");
            assert!(error.contains("at least 16"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Layers {
            file: Some("no/such/file.toml".into()),
            ..Layers::default()
        }
        .load()
        .unwrap_err();
        assert!(error.to_string().contains("no/such/file.toml"));
    }
}
