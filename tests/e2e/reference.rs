//! A database of the reference server opens, and goes on; and it goes back
//! (docs/storage.md, docs/postgres.md "From the reference server").

use serde_json::{Value as Json, json};
use ssp2::{
    ACCEPT_INLINE_ROWS, ChangeKind, Commit, Operation, OperationKind, OperationOutcome, PullHeader,
    PushCommit, PushResult, PushStatus, Request, RequestFrame, RequestHeader, ResponseFrame,
    SubStatus, Subscription,
};
use tidegate_client::{
    Base, ClientConfig, Edit, HttpTransport, OutcomeStatus, SyncClient, WireVersion,
};

use crate::process::{Backend, Server, Site, on_each_database, repository};
use crate::scenario::{LIST, client, http, schema, todo};
use crate::sql::{Row, Sql};

on_each_database!(
    a_dry_run_of_a_reference_database_tells_what_it_lacks_and_changes_nothing,
    a_reference_database_is_served_as_it_stands_and_continued,
    what_tidegate_adds_is_in_the_reference_servers_encoding,
    a_log_that_may_hold_an_older_layout_is_not_read_below_it,
    a_reference_server_takes_over_and_hands_back,
);

/// The log epoch of the stored database.
const EPOCH: &str = "5b1f0d6e2c9a4783b0e4d1a97f3c8265";

/// Rows as the codec writes them (§2.4).
const T1_AT_3: &str = "300200000074310900000067726f6365726965730900000072796520627265616401";
const T1_AT_4: &str = "300200000074310900000067726f6365726965730b0000007370656c7420627265616401";
const T5: &str = "300200000074350900000067726f6365726965730300000074656100";

/// SQL of the reference server as this database writes it.
fn dialect(on: Backend, sql: &str) -> String {
    match on {
        Backend::Sqlite => sql.to_owned(),
        Backend::Postgres => sql.replace("x'", "'\\x"),
    }
}

fn file(name: &str) -> String {
    std::fs::read_to_string(repository("tests/data/reference").join(name)).unwrap()
}

/// What a start of the reference server does to a database.
async fn reference_starts(on: Backend, sql: &Sql) {
    let tables = file(match on {
        Backend::Sqlite => "tables.sqlite.sql",
        Backend::Postgres => "tables.postgres.sql",
    });
    sql.run(&tables).await.unwrap();
}

/// A database as the reference server leaves it.
async fn reference_database(on: Backend) -> (Site, Sql) {
    let site = Site::on(on);
    let sql = Sql::of(&site);
    reference_starts(on, &sql).await;
    sql.run(&dialect(on, &file("content.sql"))).await.unwrap();
    (site, sql)
}

/// The reference server commits, in a transaction that locks the partition first.
async fn reference_commits(on: Backend, sql: &Sql, seq: i64, row: &str) {
    assert_eq!(row.len(), 2, "the payload below has ids of that length");
    let payload = format!(
        "3002000000{}0900000067726f6365726965730400000073616c7400",
        row.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    );
    let lock = match on {
        Backend::Sqlite => "BEGIN IMMEDIATE",
        Backend::Postgres => {
            "BEGIN; SELECT max_commit_seq FROM sync_partitions WHERE partition = 'default' FOR UPDATE"
        }
    };
    let commit = file("later_commit.sql")
        .replace("{seq}", &seq.to_string())
        .replace("{row}", row)
        .replace("{payload}", &payload);
    let commit = dialect(on, &format!("{lock}; {commit} COMMIT;"));
    sql.run(&commit).await.unwrap();
}

/// What a command of the site printed; it must succeed.
fn told(site: &Site, args: &[&str]) -> String {
    let output = site.tool(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn stop(site: &Site, server: Server) {
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", site.log());
}

/// A client of both tables that has nothing yet.
fn newcomer(url: &str, id: &str) -> SyncClient<HttpTransport> {
    let mut newcomer = client(url, id);
    newcomer
        .subscribe("lists", "lists", [("list_id", vec![LIST])])
        .unwrap();
    newcomer
}

/// Sends one wire-3 message of a client that the database knows.
async fn ask(
    server: &Server,
    version: i32,
    id: &str,
    actor: &str,
    frames: Vec<RequestFrame>,
) -> Vec<ResponseFrame> {
    let mut all = vec![RequestFrame::Header(RequestHeader {
        client_id: id.to_owned(),
        schema_version: version,
        log_epoch: Some(EPOCH.to_owned()),
    })];
    all.extend(frames);
    let request = Request {
        version: WireVersion::V3,
        frames: all,
    };
    let body = ssp2::encode_request(&request).unwrap();
    let device = SyncClient::new(ClientConfig::new(id), schema(), http(&server.url, actor));
    let answer = device.send_raw(body).await.unwrap();
    let frames = ssp2::decode_response(answer).unwrap().frames;
    let ResponseFrame::Header(header) = &frames[0] else {
        panic!("{frames:?}");
    };
    let epoch = header.epoch.as_ref().unwrap();
    assert_eq!(
        (epoch.log_epoch.as_str(), epoch.reset_required),
        (EPOCH, false)
    );
    frames
}

/// Pushes a commit id again, with an operation that would show if it were applied.
async fn replay(server: &Server, id: &str, actor: &str, commit: &str) -> PushResult {
    let push = RequestFrame::PushCommit(PushCommit {
        client_commit_id: commit.to_owned(),
        operations: vec![Operation {
            table: "todos".to_owned(),
            row_id: "t1".to_owned(),
            base_version: None,
            kind: OperationKind::Delete,
        }],
    });
    let frames = ask(server, 1, id, actor, vec![push]).await;
    let result = frames.into_iter().find_map(|frame| match frame {
        ResponseFrame::PushResult(result) => Some(result),
        _ => None,
    });
    result.unwrap()
}

/// What the todos' subscription is answered at a cursor.
async fn pulled(
    server: &Server,
    version: i32,
    id: &str,
    actor: &str,
    cursor: i64,
) -> Vec<ResponseFrame> {
    let frames = vec![
        RequestFrame::PullHeader(PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            accept: ACCEPT_INLINE_ROWS,
        }),
        RequestFrame::Subscription(Subscription {
            id: "todos".to_owned(),
            table: "todos".to_owned(),
            scopes: [("list_id", vec![LIST.to_owned()])].into_iter().collect(),
            params: None,
            cursor,
            bootstrap_state: None,
        }),
    ];
    ask(server, version, id, actor, frames).await
}

/// The commits that it gets, and its next cursor.
async fn pull(server: &Server, id: &str, actor: &str, cursor: i64) -> (Vec<Commit>, i64) {
    let mut commits = Vec::new();
    let mut next = None;
    for frame in pulled(server, 1, id, actor, cursor).await {
        match frame {
            ResponseFrame::SubStart(start) => {
                assert_eq!((start.status, start.bootstrap), (SubStatus::Active, false));
            }
            ResponseFrame::Commit(commit) => commits.push(commit),
            ResponseFrame::SubEnd(end) => next = Some(end.next_cursor),
            ResponseFrame::Header(_) => {}
            other => panic!("{other:?}"),
        }
    }
    (commits, next.unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn a_dry_run_of_a_reference_database_tells_what_it_lacks_and_changes_nothing(on: Backend) {
    let (site, sql) = reference_database(on).await;
    let catalog = match on {
        Backend::Sqlite => "SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY name",
        Backend::Postgres => {
            "SELECT c.relname, c.relkind::text FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
             UNION ALL SELECT t.tgname, p.proname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
               WHERE NOT t.tgisinternal ORDER BY 1"
        }
    };
    let before = sql.rows(catalog).await;
    let demo = repository("config/schemas/demo.json");
    let schema = ["--schema", demo.to_str().unwrap()];
    let checked = told(&site, &[&["check"][..], &schema].concat());
    assert!(checked.contains("todos"), "{checked}");
    let plan = told(&site, &[&["migrate", "--dry-run"][..], &schema].concat());
    for expected in [
        "from version 1 to version 1",
        "tidegate_",
        "nothing was changed",
    ] {
        assert!(plan.contains(expected), "{expected:?} in {plan}");
    }
    for table in ["lists", "todos"] {
        assert!(!plan.contains(&format!("\n  {table} ")), "{plan}");
    }
    assert_eq!(sql.rows(catalog).await, before);
    // And then there is nothing left to do.
    told(&site, &[&["migrate"][..], &schema].concat());
    let plan = told(&site, &[&["migrate", "--dry-run"][..], &schema].concat());
    assert!(plan.contains("nothing would be done"), "{plan}");
}

async fn a_reference_database_is_served_as_it_stands_and_continued(on: Backend) {
    let (site, _) = reference_database(on).await;
    told(&site, &["migrate"]);
    let server = site.start(&[]);

    // A newcomer sees exactly these rows, at these versions.
    let mut carol = newcomer(&server.url, "carol");
    carol.sync().await.unwrap();
    assert_eq!(carol.log_epoch(), Some(EPOCH));
    let seen = carol.replica();
    assert_eq!(seen.row_ids("lists"), [LIST]);
    assert_eq!(seen.version("lists", LIST), Some(2));
    assert_eq!(seen.row("lists", LIST).unwrap().text("name"), Some("Food"));
    assert_eq!(seen.row_ids("todos"), ["t1", "t3"]);
    assert_eq!(seen.version("todos", "t1"), Some(3));
    assert_eq!(
        seen.row("todos", "t1").unwrap().text("title"),
        Some("rye bread")
    );
    assert_eq!(seen.version("todos", "t3"), Some(1));
    let cheese = seen.row("todos", "t3").unwrap();
    assert_eq!(cheese.text("notes"), Some("Bergkäse"));
    assert_eq!(cheese.get("position"), Some(&ssp2::Value::Integer(3)));

    // What was decided is answered as it was, and not applied again.
    for (id, actor, commit, seq) in [
        ("ada-phone", "ada", "ada-1", 1),
        ("bob-laptop", "bob", "bob-2", 4),
        ("ada-phone", "ada", "ada-3", 5),
    ] {
        let result = replay(&server, id, actor, commit).await;
        assert_eq!(result.status, PushStatus::Cached(seq), "{result:?}");
    }
    let lost = replay(&server, "bob-laptop", "bob", "bob-3").await;
    assert_eq!(lost.status, PushStatus::Rejected);
    let OperationOutcome::Conflict {
        server_version,
        server_row,
        conflict_columns,
        message,
        ..
    } = &lost.results[0].outcome
    else {
        panic!("{lost:?}");
    };
    assert_eq!((*server_version, message.as_str()), (3, "the row is newer"));
    assert_eq!(hex(server_row), T1_AT_3);
    assert_eq!(conflict_columns[..], [1 << 2], "the title alone");

    // A client that was away gets what it lacks, and no more.
    let (commits, next) = pull(&server, "bob-laptop", "bob", 3).await;
    assert_eq!(next, 5);
    let seqs: Vec<i64> = commits.iter().map(|commit| commit.commit_seq).collect();
    assert_eq!(seqs, [4, 5]);
    assert_eq!(commits[0].actor_id, "bob");
    assert_eq!(commits[0].created_at_ms, 1_767_000_004_000);
    assert_eq!(commits[0].changes.len(), 2);
    assert_eq!(commits[0].changes[0].row_id, "t2");
    assert_eq!(commits[0].changes[0].kind, ChangeKind::Delete);
    let [ticked] = &commits[1].changes[..] else {
        panic!("the entry of another list is none of bob's: {commits:?}");
    };
    let ChangeKind::Upsert { row_version, row } = &ticked.kind else {
        panic!("{ticked:?}");
    };
    assert_eq!((*row_version, hex(row).as_str()), (3, T1_AT_3));
    let (commits, next) = pull(&server, "ada-phone", "ada", 5).await;
    assert_eq!((commits, next), (vec![], 5));
    // Commits from before they had a writer's version are served as well: a first version
    // has one layout.
    let (commits, _) = pull(&server, "ada-phone", "ada", 0).await;
    assert_eq!(commits.len(), 5);

    // The sequence goes on, and conflicts are judged by the stored column versions: what
    // ada renamed at version 2 conflicts with a base of 1, a column she never wrote does not.
    let stale = carol
        .edit([Edit::update("todos", "t1")
            .set("title", "toast")
            .base(Base::Exact(1))])
        .unwrap();
    let beside = carol
        .edit([Edit::update("todos", "t1")
            .set("notes", "two")
            .base(Base::Exact(1))])
        .unwrap();
    let added = carol.edit([todo("t5", "tea")]).unwrap();
    carol.sync().await.unwrap();
    let Some(OutcomeStatus::Conflict(conflict)) = carol.outcome(&stale) else {
        panic!("{:?}", carol.outcomes());
    };
    assert_eq!(conflict.conflict_columns, ["title"]);
    assert_eq!(carol.outcome(&beside), Some(&OutcomeStatus::Applied(6)));
    assert_eq!(carol.outcome(&added), Some(&OutcomeStatus::Applied(7)));
    assert_eq!(carol.replica().version("todos", "t1"), Some(4));
    let (commits, next) = pull(&server, "bob-laptop", "bob", 5).await;
    assert_eq!((commits.len(), next), (2, 7));
    stop(&site, server);
}

/// The values of a query with one column.
async fn column(sql: &Sql, query: &str) -> Vec<Option<String>> {
    let rows = sql.rows(query).await;
    rows.into_iter().map(|mut row| row.remove(0)).collect()
}

fn row(values: &[Option<&str>]) -> Row {
    values
        .iter()
        .map(|value| value.map(str::to_owned))
        .collect()
}

async fn what_tidegate_adds_is_in_the_reference_servers_encoding(on: Backend) {
    let (site, sql) = reference_database(on).await;
    told(&site, &["migrate"]);
    let server = site.start(&[]);
    let mut carol = newcomer(&server.url, "carol");
    carol.sync().await.unwrap();
    let ids: Vec<String> = [
        todo("t5", "tea"),
        Edit::update("todos", "t1").set("title", "spelt bread"),
        Edit::delete("todos", "t3"),
        todo("t2", "oat milk").base(Base::Absent),
        Edit::update("todos", "t1")
            .set("title", "toast")
            .base(Base::Exact(1)),
    ]
    .into_iter()
    .map(|edit| carol.edit([edit]).unwrap())
    .collect();
    carol.sync().await.unwrap();
    stop(&site, server);

    let head =
        "SELECT max_commit_seq, horizon_seq FROM sync_partitions WHERE partition = 'default'";
    assert_eq!(sql.rows(head).await, [row(&[Some("9"), Some("0")])]);
    let epoch = "SELECT log_epoch FROM sync_partition_registry WHERE NOT epoch_required";
    assert_eq!(sql.value(epoch).await, EPOCH);
    let marker = "SELECT schema_version FROM sync_schema_meta";
    assert_eq!(sql.value(marker).await, "1");

    // Commits: the old ones untouched, the new ones with their author and writer.
    let commits = "SELECT commit_seq, client_id, client_commit_id, actor_id, writer_version
        FROM sync_commits WHERE commit_seq IN (1, 5, 6, 7, 8, 9) ORDER BY commit_seq";
    let by_carol = |seq, id| row(&[Some(seq), Some("carol"), Some(id), Some("carol"), Some("1")]);
    assert_eq!(
        sql.rows(commits).await,
        [
            row(&[
                Some("1"),
                Some("ada-phone"),
                Some("ada-1"),
                Some("ada"),
                None
            ]),
            row(&[
                Some("5"),
                Some("ada-phone"),
                Some("ada-3"),
                Some("ada"),
                Some("1")
            ]),
            by_carol("6", &ids[0]),
            by_carol("7", &ids[1]),
            by_carol("8", &ids[2]),
            by_carol("9", &ids[3]),
        ]
    );
    let times =
        "SELECT count(*) FROM sync_commits WHERE commit_seq > 5 AND created_at_ms < 1767000005000";
    assert_eq!(sql.value(times).await, "0");

    // Changes, and the index by which they are found.
    let changes = format!(
        "SELECT commit_seq, idx, tbl, row_id, op, row_version, {} FROM sync_changes
         WHERE commit_seq > 5 ORDER BY commit_seq, idx",
        sql.hex("payload")
    );
    let found = sql.rows(&changes).await;
    let change = |seq, id, op, version, payload| {
        row(&[
            Some(seq),
            Some("0"),
            Some("todos"),
            Some(id),
            Some(op),
            version,
            payload,
        ])
    };
    assert_eq!(found[0], change("6", "t5", "1", Some("1"), Some(T5)));
    assert_eq!(found[1], change("7", "t1", "1", Some("4"), Some(T1_AT_4)));
    match on {
        Backend::Sqlite => assert_eq!(found[2][..6], change("8", "t3", "2", None, None)[..6]),
        Backend::Postgres => assert_eq!(found[2], change("8", "t3", "2", None, None)),
    }
    let nothing = "SELECT count(*) FROM sync_changes WHERE commit_seq = 8 AND payload IS NULL";
    assert_eq!(sql.value(nothing).await, "1");
    assert_eq!(found[3][3].as_deref(), Some("t2"));
    assert_eq!(found.len(), 4);
    let scopes = "SELECT CAST(scopes AS TEXT) FROM sync_changes WHERE commit_seq > 5";
    for text in column(&sql, scopes).await {
        let scopes: Json = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(scopes, json!({"list_id": LIST}));
    }
    let index = "SELECT tbl, var, value, commit_seq FROM sync_change_scopes
        WHERE commit_seq > 5 ORDER BY commit_seq";
    let entry = |seq| row(&[Some("todos"), Some("list_id"), Some(LIST), Some(seq)]);
    assert_eq!(
        sql.rows(index).await,
        [entry("6"), entry("7"), entry("8"), entry("9")]
    );

    // The rows: columns, payload, column versions; what is gone has a tombstone.
    let rows = format!(
        "SELECT _sync_row_id, id, list_id, title, CASE WHEN done THEN 'yes' ELSE 'no' END, position, notes,
           _sync_server_version, {} FROM todos WHERE _sync_row_id IN ('t1', 't5') ORDER BY 1",
        sql.hex("_sync_payload")
    );
    assert_eq!(
        sql.rows(&rows).await,
        [
            row(&[
                Some("t1"),
                Some("t1"),
                Some(LIST),
                Some("spelt bread"),
                Some("yes"),
                None,
                None,
                Some("4"),
                Some(T1_AT_4)
            ]),
            row(&[
                Some("t5"),
                Some("t5"),
                Some(LIST),
                Some("tea"),
                Some("no"),
                None,
                None,
                Some("1"),
                Some(T5)
            ]),
        ]
    );
    let versions = format!(
        "SELECT {} FROM todos WHERE _sync_row_id = 't1'",
        sql.hex("_sync_column_versions")
    );
    assert_eq!(
        sql.value(&versions).await,
        "02040303",
        "title at 4, done at 3"
    );
    let none = "SELECT _sync_row_id FROM todos WHERE _sync_column_versions IS NULL ORDER BY 1";
    assert_eq!(
        column(&sql, none).await,
        row(&[Some("t2"), Some("t4"), Some("t5")])
    );
    let placed = "SELECT row_id FROM sync_row_scopes WHERE tbl = 'todos' AND var = 'list_id'
        AND value = 'groceries' ORDER BY 1";
    assert_eq!(
        column(&sql, placed).await,
        row(&[Some("t1"), Some("t2"), Some("t5")])
    );
    let tombstones = "SELECT tbl, row_id, commit_seq FROM sync_tombstones";
    assert_eq!(
        sql.rows(tombstones).await,
        [row(&[Some("todos"), Some("t3"), Some("8")])]
    );

    // Results.
    let result = async |id: &str| -> Json {
        let query = format!(
            "SELECT CAST(result AS TEXT) FROM sync_push_results
             WHERE client_id = 'carol' AND client_commit_id = '{id}'"
        );
        let mut result: Json = serde_json::from_str(&sql.value(&query).await).unwrap();
        let recorded = result.as_object_mut().unwrap().remove("recordedAtMs");
        assert!(recorded.unwrap().as_i64().unwrap() > 1_767_000_005_000);
        result
    };
    for (id, seq) in ids.iter().zip(6..=9) {
        assert_eq!(
            result(id).await,
            json!({"status": "applied", "commitSeq": seq, "results": [{"opIndex": 0, "status": "applied"}]})
        );
    }
    let mut lost = result(&ids[4]).await;
    let record = lost["results"][0].as_object_mut().unwrap();
    assert!(record.remove("message").unwrap().is_string());
    assert_eq!(
        lost,
        json!({"status": "rejected", "results": [{"opIndex": 0, "status": "conflict",
            "code": "sync.version_conflict", "serverVersion": 4, "conflictColumns": "BA==",
            "serverRow": "MAIAAAB0MQkAAABncm9jZXJpZXMLAAAAc3BlbHQgYnJlYWQB"}]})
    );

    // Clients.
    let clients = "SELECT client_id, actor_id, wire_version, cursor, CAST(subscriptions AS TEXT)
        FROM sync_clients ORDER BY client_id";
    let clients = sql.rows(clients).await;
    let names: Vec<&str> = clients
        .iter()
        .map(|row| row[0].as_deref().unwrap())
        .collect();
    assert_eq!(names, ["ada-phone", "bob-laptop", "carol"]);
    assert_eq!(clients[0][3].as_deref(), Some("5"));
    assert_eq!(clients[1][3].as_deref(), Some("3"));
    assert_eq!(
        clients[2][1..4],
        row(&[Some("carol"), Some("3"), Some("9")])[..]
    );
    let subscriptions: Json = serde_json::from_str(clients[2][4].as_deref().unwrap()).unwrap();
    let subscription = |table| json!({"id": table, "table": table, "scopes": {"list_id": [LIST]}});
    assert_eq!(
        subscriptions,
        json!([subscription("todos"), subscription("lists")])
    );
}

async fn a_reference_server_takes_over_and_hands_back(on: Backend) {
    let (site, sql) = reference_database(on).await;
    told(&site, &["migrate"]);
    let server = site.start(&[]);
    let mut carol = newcomer(&server.url, "carol");
    carol.edit([todo("t5", "tea")]).unwrap();
    carol.sync().await.unwrap();
    if on == Backend::Postgres {
        // Beside a server that has the partition in memory.
        reference_commits(on, &sql, 7, "t6").await;
        carol.sync().await.unwrap();
        assert_eq!(carol.replica().version("todos", "t6"), Some(1));
    } else {
        carol.edit([todo("t6", "salt")]).unwrap();
        carol.sync().await.unwrap();
    }
    stop(&site, server);

    reference_starts(on, &sql).await;
    reference_commits(on, &sql, 8, "t7").await;

    let server = site.start(&[]);
    let mut carol = carol.map_transport(|old| old.at(&server.url));
    let commit = carol.edit([todo("t8", "pepper")]).unwrap();
    carol.sync().await.unwrap();
    assert_eq!(carol.outcome(&commit), Some(&OutcomeStatus::Applied(9)));
    assert_eq!(carol.replica().version("todos", "t7"), Some(1));
    let result = replay(&server, "bob-laptop", "bob", "bob-8").await;
    assert_eq!(result.status, PushStatus::Cached(8));
    let mut fresh = newcomer(&server.url, "fresh");
    fresh.sync().await.unwrap();
    assert_eq!(
        fresh.replica().versioned_dump(),
        carol.replica().versioned_dump()
    );
    stop(&site, server);
}

async fn a_log_that_may_hold_an_older_layout_is_not_read_below_it(on: Backend) {
    let (site, sql) = reference_database(on).await;
    // The reference server went to version 2 between the third commit and the fourth.
    sql.run(
        "UPDATE sync_schema_meta SET schema_version = 2;
         UPDATE sync_commits SET writer_version = 2 WHERE commit_seq > 3",
    )
    .await
    .unwrap();
    let text = std::fs::read_to_string(repository("config/schemas/demo.json")).unwrap();
    let mut document: Json = serde_json::from_str(&text).unwrap();
    document["version"] = 2.into();
    let path = site.path("second.json");
    std::fs::write(&path, document.to_string()).unwrap();
    let server = site.start(&["--schema", path.to_str().unwrap()]);
    for (cursor, expected) in [(2, SubStatus::Reset), (3, SubStatus::Active)] {
        let frames = pulled(&server, 2, "bob-laptop", "bob", cursor).await;
        let status = frames.iter().find_map(|frame| match frame {
            ResponseFrame::SubStart(start) => Some(start.status),
            _ => None,
        });
        assert_eq!(status, Some(expected), "at {cursor}");
    }
    stop(&site, server);
}
