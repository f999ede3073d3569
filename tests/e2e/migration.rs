//! A schema that grows between two runs: rows are rewritten, and the log from
//! before is never sent in the wrong layout.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value as Json;
use ssp2::{
    PullHeader, Request, RequestFrame, RequestHeader, ResponseFrame, SubStatus, Subscription,
};
use tidegate_client::{ClientConfig, ClientSchema, SyncClient, WireVersion};

use crate::process::{Backend, Server, Site, on_each_database, repository};
use crate::scenario::{LIST, client, http, todo};

on_each_database!(
    an_appended_column_migrates_and_older_log_is_answered_by_a_reset,
    a_dry_run_tells_the_truth_and_the_migration_says_how_far_it_is,
    a_preview_computes_before_and_after_the_migration_and_writes_nothing,
    a_migration_killed_at_any_step_is_done_whole_or_not_at_all,
);

/// The demo schema with one more, nullable column on todos.
fn grown_schema(site: &Site) -> (String, ClientSchema) {
    let text = std::fs::read_to_string(repository("config/schemas/demo.json")).unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    let key = if schema.get("version").is_some() {
        "version"
    } else {
        "schemaVersion"
    };
    schema[key] = 2.into();
    for table in schema["tables"].as_array_mut().unwrap() {
        if table["name"] == "todos" {
            let due = serde_json::json!({"name": "due", "type": "string", "nullable": true});
            table["columns"].as_array_mut().unwrap().push(due);
        }
    }
    let path = site.path("grown.json");
    std::fs::write(&path, schema.to_string()).unwrap();
    let client = ClientSchema::from_ir_json(&schema.to_string()).unwrap();
    (path.to_str().unwrap().to_owned(), client)
}

/// How the server answers a pull of the shared list from `cursor`.
async fn status_from(server: &Server, epoch: &str, cursor: i64) -> SubStatus {
    let frames = vec![
        RequestFrame::Header(RequestHeader {
            client_id: "probe".to_owned(),
            schema_version: 2,
            log_epoch: Some(epoch.to_owned()),
        }),
        RequestFrame::PullHeader(PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            accept: 3,
        }),
        RequestFrame::Subscription(Subscription {
            id: "s".to_owned(),
            table: "todos".to_owned(),
            scopes: [("list_id", vec![LIST.to_owned()])].into_iter().collect(),
            params: None,
            cursor,
            bootstrap_state: None,
        }),
    ];
    let request = Request {
        version: WireVersion::V3,
        frames,
    };
    let body = ssp2::encode_request(&request).unwrap();
    let probe = SyncClient::new(
        ClientConfig::new("probe"),
        crate::scenario::schema(),
        http(&server.url, "probe"),
    );
    let answer = probe.send_raw(body).await.unwrap();
    let response = ssp2::decode_response(answer).unwrap();
    response
        .frames
        .iter()
        .find_map(|frame| match frame {
            ResponseFrame::SubStart(start) => Some(start.status),
            _ => None,
        })
        .unwrap()
}

async fn an_appended_column_migrates_and_older_log_is_answered_by_a_reset(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    for n in 0..3 {
        ada.edit([todo(&format!("t{n}"), "from before")]).unwrap();
    }
    ada.sync().await.unwrap();
    let epoch = ada.log_epoch().unwrap().to_owned();
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));

    let (path, grown) = grown_schema(&site);
    let server = site.start(&["--schema", &path]);
    assert_eq!(status_from(&server, &epoch, 1).await, SubStatus::Reset);
    assert_eq!(status_from(&server, &epoch, 3).await, SubStatus::Active);

    // An old client learns that it must upgrade; an upgraded one carries on.
    let mut ada = ada.map_transport(|old| old.at(&server.url));
    ada.edit([todo("t3", "offline")]).unwrap();
    assert!(ada.sync().await.is_err());
    assert_eq!(ada.schema_floor().map(|floor| floor.required), Some(2));
    ada.upgrade_schema(grown.clone());
    ada.sync().await.unwrap();
    assert_eq!(ada.pending().count(), 0);
    let mut fresh = SyncClient::new(
        ClientConfig::new("fresh"),
        grown,
        http(&server.url, "fresh"),
    );
    fresh
        .subscribe("todos", "todos", [("list_id", vec![LIST])])
        .unwrap();
    fresh.sync().await.unwrap();
    assert_eq!(fresh.replica().len("todos"), 4);
    assert_eq!(
        fresh.replica().versioned_dump(),
        ada.replica().versioned_dump()
    );

    // And the old program refuses the newer database.
    server.terminate();
    server.wait();
    let refused = site.command(&[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(5));
}

/// What a command of the site printed, and how it ended.
fn tool(site: &Site, args: &[&str]) -> (Option<i32>, String, String) {
    let output = site.tool(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn lines(text: &str) -> Vec<Json> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A database at version 1 with todos of those titles; nobody serves it.
async fn with_todos(on: Backend, titles: &[&str]) -> Site {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    for (n, title) in titles.iter().enumerate() {
        ada.edit([todo(&format!("t{n}"), title)]).unwrap();
    }
    ada.sync().await.unwrap();
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));
    site
}

/// A folder with one backfill of the new column.
fn backfill(site: &Site, expression: &str) -> String {
    let folder = site.path("backfills");
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!(
        "name = 'due'\nschema_version = 2\nsources = ['todos']\ntarget = 'todos'\n[columns]\ndue = \"{expression}\"\n"
    );
    std::fs::write(folder.join("due.toml"), text).unwrap();
    folder.to_str().unwrap().to_owned()
}

async fn a_dry_run_tells_the_truth_and_the_migration_says_how_far_it_is(on: Backend) {
    let site = with_todos(on, &["a", "b", "c"]).await;
    let (path, _) = grown_schema(&site);
    let folder = backfill(&site, "row.title");
    let with = |args: &[&'static str]| -> (Option<i32>, String, String) {
        let mut all = vec!["migrate", "--schema", &path, "--backfills", &folder];
        all.extend(args);
        tool(&site, &all)
    };
    let (code, text, _) = with(&["--dry-run"]);
    assert_eq!(code, Some(0));
    for expected in [
        "from version 1 to version 2",
        "ALTER TABLE \"todos\" ADD COLUMN \"due\"",
        "todos gains or loses columns, 3 rows to rewrite",
        "due in 1 partitions",
        "the dry run read and recoded 3 rows",
        "nothing was changed",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    // Twice the same but for the time: nothing was changed indeed.
    let plan = || {
        let (code, text, _) = with(&["--dry-run", "--json"]);
        assert_eq!(code, Some(0));
        let mut plan = lines(&text).remove(0);
        plan["estimate"] = Json::Null;
        plan
    };
    let first = plan();
    assert_eq!(first["from"], 1);
    assert_eq!(first["declarations"][0]["name"], "due");
    assert_eq!(plan(), first);

    let (code, text, log) = with(&[]);
    assert_eq!(code, Some(0), "{log}");
    let steps = lines(&text);
    let names: Vec<&str> = steps.iter().map(|s| s["step"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "waiting_for_barrier",
            "barrier_held",
            "rewriting",
            "publishing",
            "done"
        ]
    );
    assert_eq!(steps[2]["rowsDone"], 3);
    assert_eq!(steps[2]["rowsTotal"], 3);
    assert_eq!(steps[4]["rowsRewritten"], 3);
    assert_eq!(steps[4]["outcome"], "migrated");

    let (code, text, _) = with(&["--dry-run"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("already: nothing would be done"), "{text}");
    // Who does not declare what is pending neither migrates nor serves.
    let (code, _, log) = tool(&site, &["migrate", "--schema", &path]);
    assert_eq!(code, Some(5));
    assert!(log.contains("backfill_checkpoint: "), "{log}");
    let refused = site.command(&["--schema", &path]).output().unwrap();
    assert_eq!(refused.status.code(), Some(5));
    let server = site.start(&["--schema", &path, "--backfills", &folder]);
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));
    // The old schema is refused in a dry run as in a migration.
    for args in [&["migrate", "--dry-run"][..], &["migrate"]] {
        assert_eq!(tool(&site, args).0, Some(5));
    }
}

async fn a_preview_computes_before_and_after_the_migration_and_writes_nothing(on: Backend) {
    let site = with_todos(on, &["12", "x"]).await;
    let (path, _) = grown_schema(&site);
    let file = site.path("tidegate.db");
    for migrated in [false, true] {
        let folder = backfill(&site, "string(int(row.title) * 2)");
        let preview = |args: &[&'static str]| {
            let mut all = vec!["backfill", "preview", "due", "--schema", &path];
            all.extend(["--backfills", &folder]);
            all.extend(args);
            tool(&site, &all)
        };
        let before = (on == Backend::Sqlite).then(|| std::fs::read(&file).unwrap());
        let (code, text, _) = preview(&[]);
        assert_eq!(code, Some(1), "a row fails");
        for expected in [
            "title = \"12\"",
            "due = NULL",
            "│ due = \"24\"",
            "│ FAILED due: a function refuses its argument",
            "2 rows read, 1 computed, 0 left out, 1 failed; nothing was written",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        let (code, text, _) = preview(&["--limit", "1", "--json"]);
        assert_eq!(code, Some(0));
        let rows = lines(&text);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["rowId"], "t0");
        assert_eq!(rows[0]["source"]["due"], Json::Null);
        assert_eq!(rows[0]["computed"], serde_json::json!({"due": "24"}));
        let (code, text, _) = preview(&["--partition", "nobody's", "--json"]);
        assert_eq!((code, text.as_str()), (Some(0), ""));
        if let Some(before) = before {
            assert!(std::fs::read(&file).unwrap() == before, "{migrated}");
        }
        if !migrated {
            let args = ["migrate", "--schema", &path, "--backfills", &folder];
            assert_eq!(tool(&site, &args).0, Some(0));
        }
    }
    // What is no backfill, and no database.
    let folder = backfill(&site, "row.nothing");
    let args = ["backfill", "preview", "due", "--schema", &path];
    let broken = tool(&site, &[&args[..], &["--backfills", &folder]].concat());
    assert_eq!(broken.0, Some(2));
    assert!(
        broken
            .2
            .contains("due.toml: columns.due: todos has no column nothing"),
        "{broken:?}"
    );
    let unknown = tool(&site, &args);
    assert_eq!(unknown.0, Some(2));
    assert!(unknown.2.contains("no backfill is called due"));
    let folder = backfill(&site, "row.title");
    let missing = site.path("missing.db");
    let database = format!("sqlite:{}", missing.display());
    let elsewhere = ["--backfills", &folder, "--database", &database];
    assert_eq!(tool(&site, &[&args[..], &elsewhere].concat()).0, Some(4));
    let args = ["migrate", "--dry-run", "--database", &database];
    assert_eq!(tool(&site, &args).0, Some(0));
    assert!(!missing.exists());
    // check knows backfills too.
    let check = tool(&site, &["check", "--schema", &path, "--backfills", &folder]);
    assert_eq!(check.0, Some(0));
    assert!(
        check.1.contains("fills due of todos from todos"),
        "{check:?}"
    );
}

async fn a_migration_killed_at_any_step_is_done_whole_or_not_at_all(on: Backend) {
    let site = with_todos(on, &["a", "b", "c"]).await;
    let (path, _) = grown_schema(&site);
    let folder = backfill(&site, "row.title");
    let args = ["migrate", "--schema", &path, "--backfills", &folder];
    let plan = || {
        let (code, text, log) = tool(&site, &[&args[..], &["--dry-run", "--json"]].concat());
        assert_eq!(code, Some(0), "{log}");
        let mut plan = lines(&text).remove(0);
        plan["estimate"] = Json::Null;
        plan
    };
    let first = plan();
    for steps in 1..=4 {
        let mut command = site.tool(&args);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..steps {
            // It may be through already, in an earlier round.
            let _ = told.next();
        }
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        let now = plan();
        if now != first {
            assert_eq!(now["from"], 2, "after {steps} steps: {now}");
            assert_eq!(now["statements"], serde_json::json!([]));
            break;
        }
    }
    let (code, _, log) = tool(&site, &args);
    assert_eq!(code, Some(0), "{log}");
    let preview = ["backfill", "preview", "due", "--json"];
    let source = ["--schema", path.as_str(), "--backfills", folder.as_str()];
    let (code, text, _) = tool(&site, &[&preview[..], &source].concat());
    assert_eq!(code, Some(0));
    let titles: Vec<Json> = lines(&text)
        .iter()
        .map(|row| row["source"]["title"].clone())
        .collect();
    assert_eq!(titles, ["a", "b", "c"]);
}
