//! A role that owns and migrates, and one that serves and may no more than that
//! (docs/postgres.md, "Roles").

use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_client::OutcomeStatus;
use tidegate_test_postgres::{Database, Server as Postgres};

use crate::process::{Server, Site};
use crate::scenario::{client, todo};
use crate::sql::Session;
use crate::upgrade::Grown;

/// The two roles and their database, as the document makes them, with names of their own
/// where it says `tidegate_owner` and `tidegate`.
struct Roles {
    postgres: &'static Postgres,
    owner: String,
    serving: String,
    /// Dropped before the roles are.
    database: Option<Database>,
}

impl Roles {
    async fn made() -> Self {
        let postgres = Postgres::shared().unwrap_or_else(|error| panic!("{error}"));
        // The roles of a cluster are every test's.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let stem = format!("tidegate_{}_{number}", std::process::id());
        let (owner, serving) = (format!("{stem}_owner"), format!("{stem}_serving"));
        for role in [&owner, &serving] {
            postgres
                .execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'of a test'"))
                .unwrap();
        }
        let options = format!("OWNER {owner} TEMPLATE template0 ENCODING 'UTF8'");
        let database = Database::create_with(&options).unwrap();
        let name = database.name();
        let statements = format!(
            "REVOKE ALL ON DATABASE {name} FROM PUBLIC;
             REVOKE ALL ON SCHEMA public FROM PUBLIC;
             CREATE SCHEMA tidegate AUTHORIZATION {owner};
             GRANT CONNECT ON DATABASE {name} TO {serving};
             GRANT USAGE ON SCHEMA tidegate TO {serving};
             ALTER DATABASE {name} SET search_path = tidegate;
             ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA tidegate
               GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {serving};
             ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA tidegate
               GRANT EXECUTE ON FUNCTIONS TO {serving};"
        );
        let administrator = Session::open(&database.url()).await;
        administrator.run(&statements).await.unwrap();
        Self {
            postgres,
            owner,
            serving,
            database: Some(database),
        }
    }

    /// The database as one of the roles reaches it.
    fn url(&self, role: &str) -> String {
        let url = self.database.as_ref().unwrap().url();
        let (scheme, rest) = url.split_once("://").unwrap();
        let place = rest.split_once('@').map_or(rest, |(_, place)| place);
        format!("{scheme}://{role}:of%20a%20test@{place}")
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        drop(self.database.take());
        // In a private cluster, which goes as a whole, their database still stands.
        for role in [&self.serving, &self.owner] {
            let _ = self
                .postgres
                .execute(&format!("DROP ROLE IF EXISTS {role}"));
        }
    }
}

/// A start that is refused for the role's rights, in one line.
fn assert_not_permitted(output: &Output) {
    assert_eq!(output.status.code(), Some(17), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    let refusals: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("tidegate: "))
        .collect();
    let [refusal] = refusals[..] else {
        panic!("{told}");
    };
    for expected in ["rights that this role lacks", "run `tidegate migrate`"] {
        assert!(refusal.contains(expected), "{refusal}");
    }
    assert!(
        !told.contains("of a test") && !told.contains("of%20a%20test"),
        "{told}"
    );
}

fn migrated(site: &Site, args: &[&str]) {
    let output = site
        .tool(&[&["migrate"][..], args].concat())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

fn stop(site: &Site, server: Server) {
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", site.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_read_and_write_rows_serves_what_its_owner_migrated() {
    let roles = Roles::made().await;
    let owner = Site::at(&roles.url(&roles.owner));
    let site = Site::at(&roles.url(&roles.serving));

    // Before there is anything it may not even begin.
    let output = site.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(17), "{output:?}");

    migrated(&owner, &[]);
    let session = Session::open(site.url()).await;
    for forbidden in [
        "CREATE TABLE other(id INTEGER)",
        "ALTER TABLE todos ADD COLUMN other TEXT",
        "DROP TRIGGER sync_commits_writer_fence ON sync_commits",
    ] {
        session.run(forbidden).await.unwrap_err();
    }
    drop(session);

    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    let first = ada.edit([todo("t1", "bread")]).unwrap();
    ada.sync().await.unwrap();
    assert_eq!(ada.outcome(&first), Some(&OutcomeStatus::Applied(1)));
    stop(&site, server);
    let server = site.start(&[]);
    let mut ada = ada.map_transport(|old| old.at(&server.url));
    let second = ada.edit([todo("t2", "milk")]).unwrap();
    ada.sync().await.unwrap();
    assert_eq!(ada.outcome(&second), Some(&OutcomeStatus::Applied(2)));
    let mut witness = client(&server.url, "witness");
    witness.sync().await.unwrap();
    assert_eq!(witness.replica().row_ids("todos"), ["t1", "t2"]);
    stop(&site, server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_migrate_says_so_and_changes_nothing() {
    let roles = Roles::made().await;
    let owner = Site::at(&roles.url(&roles.owner));
    let site = Site::at(&roles.url(&roles.serving));
    migrated(&owner, &[]);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    ada.edit([todo("t1", "bread")]).unwrap();
    ada.sync().await.unwrap();

    // A newer schema version.
    let grown = Grown::at(&site);
    assert_not_permitted(&site.command(&grown.args()).output().unwrap());
    let args = [&["migrate"][..], &grown.args()].concat();
    assert_not_permitted(&site.tool(&args).output().unwrap());
    // The running server goes on, and another one of its version starts.
    ada.edit([todo("t2", "milk")]).unwrap();
    ada.sync().await.unwrap();
    stop(&site, server);
    stop(&site, site.start(&[]));

    // A part of the core that is missing or another program's.
    let administrator = Session::open(owner.url()).await;
    administrator
        .run("DROP TRIGGER sync_commits_writer_fence ON sync_commits")
        .await
        .unwrap();
    assert_not_permitted(&site.command(&[]).output().unwrap());
    migrated(&owner, &[]);
    stop(&site, site.start(&[]));

    migrated(&owner, &grown.args());
    let server = site.start(&grown.args());
    let found = reqwest::get(format!("{}/healthz", server.url))
        .await
        .unwrap();
    assert!(found.status().is_success());
    stop(&site, server);
}
