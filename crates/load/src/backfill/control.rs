//! A server with its control endpoint, and the checkpoints that it tells of.

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Client, Method};
use serde_json::{Value as Json, json};

use super::rewrite::Projection;
use super::{PARTITION, SCHEMA_TWO, setup};
use crate::runner::LoadError;
use crate::server::ServerProcess;

const TOKEN: &str = "tidegate-load-suite";
/// Between looks at a checkpoint.
const LOOK: Duration = Duration::from_millis(20);

/// Files that a server of schema 2 reads.
pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub fn write(projections: &[Projection]) -> Result<Self, LoadError> {
        let folder = tempfile::tempdir().map_err(setup)?;
        std::fs::write(folder.path().join("schema.json"), SCHEMA_TWO).map_err(setup)?;
        std::fs::create_dir(folder.path().join("backfills")).map_err(setup)?;
        for projection in projections {
            let file = folder
                .path()
                .join("backfills")
                .join(projection.name())
                .with_extension("toml");
            std::fs::write(file, projection.toml()).map_err(setup)?;
        }
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// A server that can be operated.
pub(super) struct Operated {
    pub server: ServerProcess,
    control: String,
    client: Client,
    _files: Files,
}

impl Operated {
    /// Starts a server of schema 2 that has the projections loaded.
    pub async fn start(
        binary: &Path,
        database: &str,
        projections: &[Projection],
        environment: &[(String, String)],
    ) -> Result<Self, LoadError> {
        let files = Files::write(projections)?;
        // The endpoint takes a port that was just free.
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .map_err(setup)?
            .port();
        let mut all = vec![
            (
                "TIDEGATE_CONTROL__LISTEN".to_owned(),
                format!("127.0.0.1:{port}"),
            ),
            ("TIDEGATE_CONTROL_TOKEN".to_owned(), TOKEN.to_owned()),
            (
                "TIDEGATE_SCHEMA__FILE".to_owned(),
                files.path("schema.json"),
            ),
            ("TIDEGATE_BACKFILL__DIR".to_owned(), files.path("backfills")),
            ("TIDEGATE_BACKFILL__POLL_MS".to_owned(), "50".to_owned()),
        ];
        all.extend(environment.iter().cloned());
        Ok(Self {
            server: ServerProcess::start(binary, &[], &all, Some(database)).await?,
            control: format!(
                "http://127.0.0.1:{port}/control/v1/partitions/{PARTITION}/checkpoints"
            ),
            client: Client::builder().no_proxy().build().map_err(setup)?,
            _files: files,
        })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Json>) -> Result<Json, LoadError> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.control))
            .header("authorization", format!("Bearer {TOKEN}"));
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await.map_err(setup)?;
        let status = response.status();
        let text = response.text().await.map_err(setup)?;
        if !status.is_success() {
            return Err(setup(format!("{path}: {status} {text}")));
        }
        serde_json::from_str(&text).map_err(setup)
    }

    pub async fn declare(&self, projection: Projection) -> Result<(), LoadError> {
        let body = json!({"name": projection.name()});
        self.ask(Method::POST, "", Some(body)).await.map(|_| ())
    }

    /// `pause` or `resume`.
    pub async fn order(&self, projection: Projection, order: &str) -> Result<(), LoadError> {
        let path = format!("/{}/{order}", projection.name());
        self.ask(Method::POST, &path, Some(json!({})))
            .await
            .map(|_| ())
    }

    /// The checkpoint as it stands.
    pub async fn checkpoint(&self, projection: Projection) -> Result<Json, LoadError> {
        let all = self.ask(Method::GET, "", None).await?;
        let found = all["checkpoints"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["name"] == projection.name()));
        found
            .cloned()
            .ok_or_else(|| setup("there is no such checkpoint"))
    }

    /// Waits until the checkpoint is as wanted.
    ///
    /// # Errors
    /// Also when its worker failed.
    pub async fn until(
        &self,
        projection: Projection,
        done: impl Fn(&Json) -> bool,
    ) -> Result<Json, LoadError> {
        let deadline = Instant::now() + Duration::from_secs(1800);
        loop {
            let checkpoint = self.checkpoint(projection).await?;
            if checkpoint["phase"] == "failed" || Instant::now() > deadline {
                return Err(setup(format!("the backfill does not go on: {checkpoint}")));
            }
            if done(&checkpoint) {
                return Ok(checkpoint);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_server_are_a_schema_and_its_backfills() {
        let files = Files::write(&[Projection::Column, Projection::Table]).unwrap();
        let schema = std::fs::read_to_string(files.path("schema.json")).unwrap();
        let schema = tidegate_engine::schema::Schema::load(&schema).unwrap();
        for projection in [Projection::Column, Projection::Table] {
            let path = files.path(&format!("backfills/{}.toml", projection.name()));
            let text = std::fs::read_to_string(path).unwrap();
            let config =
                tidegate_engine::backfill::projection::ProjectionConfig::parse(&text).unwrap();
            assert!(
                tidegate_engine::backfill::projection::DeclaredProjection::load(&config, &schema)
                    .is_ok()
            );
            assert_eq!(config.name, projection.name());
        }
    }
}
