//! The backfills that the configuration declares: every `*.toml` of a folder is one
//! ([`ProjectionConfig`]; `config/backfills/example.toml` explains the keys).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_engine::backfill::projection::{DeclaredProjection, Projection, ProjectionConfig};
use tidegate_engine::schema::Schema;
use tidegate_store::{Declaration, Partitions};

use crate::config::Config;
use crate::server::ServeError;

/// Loads and compiles the configured backfills, in the order of their file names.
///
/// # Errors
/// [`ServeError::BackfillsUnreadable`], or [`ServeError::InvalidBackfills`] with every
/// broken rule, its file and its key.
pub fn load_projections(
    config: &Config,
    schema: &Schema,
) -> Result<Vec<Arc<dyn Projection>>, ServeError> {
    load_folder(&config.backfill.dir, schema)
}

/// [`load_projections`] of a folder; an empty path is none.
///
/// # Errors
/// As [`load_projections`].
pub fn load_folder(folder: &Path, schema: &Schema) -> Result<Vec<Arc<dyn Projection>>, ServeError> {
    let mut projections: Vec<Arc<dyn Projection>> = Vec::new();
    let mut errors = Vec::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut columns: BTreeMap<(String, String), String> = BTreeMap::new();
    for path in files(folder)? {
        let file = path.display().to_string();
        let text = read(&path)?;
        let config = match ProjectionConfig::parse(&text) {
            Ok(config) => config,
            Err(error) => {
                errors.push(format!("{file}: {error}"));
                continue;
            }
        };
        match DeclaredProjection::load(&config, schema) {
            Ok(projection) => projections.push(Arc::new(projection)),
            Err(broken) => errors.extend(broken.iter().map(|error| format!("{file}: {error}"))),
        }
        if let Some(other) = names.insert(config.name.clone(), file.clone()) {
            let name = &config.name;
            errors.push(format!("{file}: name: {other} declares {name} too"));
        }
        // Two backfills of one value would undo each other without end.
        for column in config.columns.keys() {
            let key = (config.target.clone(), column.clone());
            if let Some(other) = columns.insert(key, file.clone()) {
                let target = &config.target;
                errors.push(format!(
                    "{file}: columns.{column}: {other} computes it too, in {target}"
                ));
            }
        }
    }
    if errors.is_empty() {
        Ok(projections)
    } else {
        Err(ServeError::InvalidBackfills(errors))
    }
}

/// What a process declares that has these projections: each in every partition.
pub fn declarations(projections: &[Arc<dyn Projection>]) -> Vec<Declaration> {
    projections
        .iter()
        .map(|projection| Declaration {
            partitions: Partitions::Every,
            name: projection.name().to_owned(),
            schema_version: projection.schema_version(),
        })
        .collect()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, ServeError> {
    if folder.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    let unreadable = |source| ServeError::BackfillsUnreadable {
        path: folder.display().to_string(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, ServeError> {
    std::fs::read_to_string(path).map_err(|source| ServeError::BackfillsUnreadable {
        path: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;

    const TODO: &str = r#"
name = "done-flag"
schema_version = 1
sources = ["todos"]
target = "todos"
[columns]
note = "row.title"
"#;

    fn schema() -> Schema {
        let text = r#"{"version":1,"tables":[{"name":"todos","primaryKey":"id","columns":[
            {"name":"id","type":"string","nullable":false},
            {"name":"list","type":"string","nullable":false},
            {"name":"title","type":"string","nullable":false},
            {"name":"note","type":"string","nullable":true}],"scopes":["list:{list}"]}]}"#;
        Schema::load(text).unwrap()
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn errors(files: &[(&str, &str)]) -> Vec<String> {
        let folder = folder(files);
        let Err(ServeError::InvalidBackfills(errors)) = load_folder(folder.path(), &schema())
        else {
            panic!("not refused")
        };
        errors
    }

    #[test]
    fn no_folder_means_no_backfills() {
        let loaded = load_projections(&Config::default(), &schema()).unwrap();
        assert!(loaded.is_empty());
    }

    #[test]
    fn every_toml_of_the_folder_is_a_backfill_of_every_partition() {
        let other = TODO.replace("done-flag", "another").replace(
            "[columns]",
            "key = \"row.id\"\n[columns]\nlist = \"row.list\"\ntitle = \"row.title\"",
        );
        let schema_text = r#"{"version":1,"tables":[
            {"name":"todos","primaryKey":"id","columns":[
              {"name":"id","type":"string","nullable":false},{"name":"list","type":"string","nullable":false},
              {"name":"title","type":"string","nullable":false},{"name":"note","type":"string","nullable":true}],
              "scopes":["list:{list}"]},
            {"name":"cards","primaryKey":"id","columns":[
              {"name":"id","type":"string","nullable":false},{"name":"list","type":"string","nullable":false},
              {"name":"title","type":"string","nullable":false},{"name":"note","type":"string","nullable":true}],
              "scopes":["list:{list}"]}]}"#;
        let other = other.replace("target = \"todos\"", "target = \"cards\"");
        let folder = folder(&[("b.toml", TODO), ("a.toml", &other), ("notes.md", "no")]);
        let schema = Schema::load(schema_text).unwrap();
        let loaded = load_folder(folder.path(), &schema).unwrap();
        let declared = declarations(&loaded);
        let names: Vec<&str> = declared.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["another", "done-flag"]);
        for one in &declared {
            assert_eq!(one.partitions, Partitions::Every);
            assert_eq!(one.schema_version, schema.version());
        }
    }

    #[test]
    fn a_broken_rule_names_file_and_key() {
        let broken = TODO.replace("note =", "nothing =");
        let found = errors(&[("x.toml", &broken), ("y.toml", "name = 1")]);
        assert!(
            found[0].contains("x.toml: columns.nothing: todos has no such column"),
            "{found:?}"
        );
        assert!(found[1].contains("y.toml: line 1: "), "{found:?}");
    }

    #[test]
    fn one_name_and_one_column_have_one_file() {
        let found = errors(&[("a.toml", TODO), ("b.toml", TODO)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("b.toml: name: ") && found[0].contains("a.toml declares"));
        assert!(found[1].contains("b.toml: columns.note: ") && found[1].contains("a.toml"));
    }

    #[test]
    fn a_missing_folder_is_an_error_of_the_configuration() {
        let refused = load_folder(Path::new("no/such/folder"), &schema());
        let Err(error) = refused else {
            panic!("not refused")
        };
        assert!(error.to_string().contains("no/such/folder"));
        assert_eq!(error.exit(), Exit::Usage);
    }
}
