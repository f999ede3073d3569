//! Request admission: "Request order" of the protocol, §1.5, §1.6, §2.1, §4.1 to §4.3.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use ssp2::{
    ErrorCode, Operation, OperationKind, PullHeader, PushCommit, Request, RequestFrame,
    RequestHeader, ScopeLists, Subscription, UnknownFrame, WireVersion,
};
use tidegate_engine::model::{ClientRecord, Registry};
use tidegate_engine::round::{
    Admission, AdmittedRound, DEFAULT_MAX_OPERATIONS, HeaderOnly, PullLimits, RoundContext, admit,
};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, SchemaVersion, TableId};

const SCHEMA: &str = r#"{"version": 5, "tables": [
    {"name": "tasks", "primaryKey": "id", "columns": [
        {"name": "id", "type": "string"}, {"name": "team", "type": "string"}],
     "scopes": ["team:{team}"]}
]}"#;

/// A request under construction, valid until a test breaks it.
struct Draft {
    version: WireVersion,
    header: RequestHeader,
    operations: Vec<usize>,
    commit_id: Option<String>,
    pull: Option<PullHeader>,
    subscriptions: Vec<Subscription>,
    rotated: bool,
    bound_to: Option<&'static str>,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            version: WireVersion::V3,
            header: RequestHeader {
                client_id: "device".into(),
                schema_version: 5,
                log_epoch: Some("epoch".into()),
            },
            operations: vec![],
            commit_id: None,
            pull: Some(pull_header(3)),
            subscriptions: vec![],
            rotated: false,
            bound_to: None,
        }
    }
}

fn pull_header(accept: u8) -> PullHeader {
    PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept,
    }
}

fn subscription(id: &str, table: &str, scopes: &[(&str, &str)]) -> Subscription {
    Subscription {
        id: id.into(),
        table: table.into(),
        scopes: scopes
            .iter()
            .map(|(key, value)| (*key, vec![(*value).to_owned()]))
            .collect::<ScopeLists>(),
        params: None,
        cursor: -1,
        bootstrap_state: None,
    }
}

impl Draft {
    fn request(&self) -> Request {
        let mut frames = vec![
            RequestFrame::Header(self.header.clone()),
            RequestFrame::Unknown(UnknownFrame {
                frame_type: 0x20,
                payload: Bytes::from_static(b"?"),
            }),
        ];
        for (at, count) in self.operations.iter().enumerate() {
            let operation = Operation {
                table: "tasks".into(),
                row_id: "t1".into(),
                base_version: None,
                kind: OperationKind::Delete,
            };
            frames.push(RequestFrame::PushCommit(PushCommit {
                client_commit_id: self.commit_id.clone().unwrap_or(format!("c{at}")),
                operations: vec![operation; *count],
            }));
        }
        frames.extend(self.pull.map(RequestFrame::PullHeader));
        frames.extend(
            self.subscriptions
                .iter()
                .cloned()
                .map(RequestFrame::Subscription),
        );
        Request {
            version: self.version,
            frames,
        }
    }

    fn with<T>(&self, check: impl FnOnce(Result<Admission<'_>, ErrorCode>) -> T) -> T {
        let schema = Schema::load(SCHEMA).unwrap();
        let registry = Registry {
            log_epoch: "epoch".into(),
            epoch_required: self.rotated,
        };
        let client = self.bound_to.map(|actor| ClientRecord {
            client_id: "device".into(),
            actor_id: actor.into(),
            wire_version: WireVersion::V3,
            cursor: 0,
            subscriptions: vec![],
            updated_at_ms: 0,
        });
        let actor = ActorId::from("alice");
        let context = RoundContext {
            schema: &schema,
            registry: &registry,
            client: client.as_ref(),
            actor: &actor,
            max_operations: DEFAULT_MAX_OPERATIONS,
        };
        check(admit(&self.request(), &context).map_err(|error| error.code))
    }

    fn error(&self) -> ErrorCode {
        self.with(|admission| admission.expect_err("the request fails"))
    }

    fn header_only(&self) -> HeaderOnly {
        self.with(|admission| match admission.expect("no failure") {
            Admission::HeaderOnly(answer) => answer,
            Admission::Round(round) => panic!("went on: {round:?}"),
        })
    }

    fn round<T>(&self, check: impl FnOnce(AdmittedRound<'_>) -> T) -> T {
        self.with(|admission| match admission.expect("no failure") {
            Admission::Round(round) => check(round),
            Admission::HeaderOnly(answer) => panic!("ended: {answer:?}"),
        })
    }

    fn with_epoch(mut self, epoch: Option<&str>) -> Self {
        self.header.log_epoch = epoch.map(str::to_owned);
        self
    }

    fn at_version(mut self, version: WireVersion, schema_version: i32) -> Self {
        self.version = version;
        self.header.schema_version = schema_version;
        self
    }
}

#[test]
fn a_sound_request_is_admitted_whole() {
    let draft = Draft {
        operations: vec![1, 2],
        subscriptions: vec![
            subscription("b", "tasks", &[("team", "t")]),
            subscription("a", "tasks", &[]),
        ],
        bound_to: Some("alice"),
        ..Draft::default()
    };
    draft.round(|round| {
        assert_eq!(round.version, WireVersion::V3);
        assert_eq!(round.client_id.as_str(), "device");
        let commits: Vec<_> = round
            .pushes
            .iter()
            .map(|p| p.client_commit_id.as_str())
            .collect();
        assert_eq!(commits, ["c0", "c1"]);
        let pull = round.pull.unwrap();
        let ids: Vec<_> = pull
            .subscriptions
            .iter()
            .map(|s| s.frame.id.as_str())
            .collect();
        assert_eq!(ids, ["b", "a"], "request order is priority order");
        assert_eq!(pull.subscriptions[0].table, TableId(0));
    });
}

#[test]
fn a_push_without_a_pull_header_has_no_pull_half() {
    let draft = Draft {
        operations: vec![1],
        pull: None,
        ..Draft::default()
    };
    draft.round(|round| assert_eq!(round.pull, None));
}

#[test]
fn s1_6_an_ordinary_header_carries_the_latest_version_only() {
    Draft::default().round(|round| {
        assert_eq!(round.header.required_schema_version, None);
        assert_eq!(round.header.latest_schema_version, Some(5));
        let epoch = round.header.epoch.unwrap();
        assert_eq!(
            (epoch.log_epoch.as_str(), epoch.reset_required),
            ("epoch", false)
        );
    });
    let v1 = Draft::default()
        .at_version(WireVersion::V1, 5)
        .with_epoch(None);
    v1.round(|round| assert_eq!(round.header.epoch, None));
}

#[test]
fn s2_1_wire_1_is_refused_once_the_epoch_was_rotated() {
    let mut v1 = Draft::default()
        .at_version(WireVersion::V1, 4)
        .with_epoch(None);
    v1.rotated = true;
    assert_eq!(
        v1.error(),
        ErrorCode::ClientWireUnsupported,
        "before the schema floor"
    );
    for version in [WireVersion::V2, WireVersion::V3] {
        let mut newer = Draft::default().at_version(version, 5);
        newer.rotated = true;
        newer.round(|round| assert_eq!(round.version, version));
    }
}

#[test]
fn s2_1_an_absent_epoch_acquires_it_and_does_nothing_else() {
    for version in [WireVersion::V2, WireVersion::V3] {
        let mut draft = Draft::default().at_version(version, 5).with_epoch(None);
        draft.subscriptions = vec![subscription("s", "nope", &[])];
        let answer = draft.header_only();
        assert_eq!(
            answer,
            HeaderOnly {
                required: None,
                latest: SchemaVersion(5),
                epoch: Some("epoch".into()),
                reset_required: true,
            }
        );
        let header = answer.header();
        assert_eq!(header.required_schema_version, None);
        assert!(header.epoch.unwrap().reset_required);
    }
}

#[test]
fn s2_1_an_acquisition_must_not_push() {
    let mut draft = Draft::default().with_epoch(None);
    draft.operations = vec![1];
    assert_eq!(draft.error(), ErrorCode::InvalidRequest);
    let draft = draft.at_version(WireVersion::V3, 4);
    assert_eq!(
        draft.error(),
        ErrorCode::InvalidRequest,
        "before the schema floor"
    );
}

#[test]
fn s2_1_wire_1_pushes_without_an_epoch() {
    let mut draft = Draft::default()
        .at_version(WireVersion::V1, 5)
        .with_epoch(None);
    draft.operations = vec![1];
    draft.round(|round| assert_eq!(round.pushes.len(), 1));
}

#[test]
fn s2_1_another_epoch_is_a_reset_before_any_other_work() {
    let mut draft = Draft::default().with_epoch(Some("older"));
    draft.operations = vec![DEFAULT_MAX_OPERATIONS + 1];
    draft.header.client_id = "[\"remote-command\",1]".into();
    let answer = draft.header_only();
    assert!(answer.reset_required);
    assert_eq!(answer.required, None);
    assert_eq!(Draft::default().with_epoch(Some("")).header_only(), answer);
}

#[test]
fn s1_6_an_unserved_schema_version_is_answered_by_the_floor_too_old_or_too_new() {
    for schema_version in [1, 4, 6, i32::MAX] {
        let mut draft = Draft::default().at_version(WireVersion::V3, schema_version);
        draft.operations = vec![DEFAULT_MAX_OPERATIONS + 1];
        let answer = draft.header_only();
        assert_eq!(answer.required, Some(SchemaVersion(5)));
        assert_eq!(answer.latest, SchemaVersion(5));
        assert!(!answer.reset_required, "the epoch matches");
    }
}

#[test]
fn s1_6_the_floor_wins_over_the_reset_and_still_tells_the_truth_about_it() {
    for epoch in [None, Some("older")] {
        let answer = Draft::default()
            .at_version(WireVersion::V2, 4)
            .with_epoch(epoch)
            .header_only();
        assert_eq!(answer.required, Some(SchemaVersion(5)));
        assert_eq!(answer.epoch, Some("epoch".into()));
        assert!(answer.reset_required);
    }
}

#[test]
fn s1_6_wire_1_gets_a_floor_without_an_epoch() {
    let answer = Draft::default()
        .at_version(WireVersion::V1, 4)
        .with_epoch(None)
        .header_only();
    assert_eq!((answer.epoch.clone(), answer.reset_required), (None, false));
    let header = answer.header();
    assert_eq!(header.required_schema_version, Some(5));
    assert_eq!(header.latest_schema_version, Some(5));
    assert_eq!(header.epoch, None);
}

#[test]
fn s1_5_a_client_id_belongs_to_its_first_actor() {
    let draft = |bound_to| Draft {
        bound_to,
        ..Draft::default()
    };
    assert_eq!(draft(Some("bob")).error(), ErrorCode::InvalidClientId);
    draft(Some("alice")).round(|_| ());
    draft(None).round(|_| ());
}

#[test]
fn s1_5_the_servers_own_client_ids_are_reserved() {
    let mut draft = Draft::default();
    draft.header.client_id = "[\"remote-command\",\"x\"]".into();
    assert_eq!(draft.error(), ErrorCode::InvalidClientId);
    draft.header.client_id = "[\"remote-commander\"]".into();
    draft.round(|_| ());
}

#[test]
fn ids_that_a_database_cannot_hold_are_refused() {
    let client = |id: String| {
        let mut draft = Draft::default();
        draft.header.client_id = id;
        draft
    };
    client("d".repeat(1024)).round(|_| ());
    for id in ["d".repeat(1025), "d\0".into()] {
        assert_eq!(client(id).error(), ErrorCode::InvalidClientId);
    }
    let push = |id: String| Draft {
        operations: vec![1],
        commit_id: Some(id),
        ..Draft::default()
    };
    push("k".repeat(1024)).round(|_| ());
    for id in ["k".repeat(1025), "k\0".into()] {
        assert_eq!(push(id).error(), ErrorCode::InvalidRequest);
    }
}

#[test]
fn s6_1_the_operation_cap_counts_the_whole_request() {
    let draft = |operations| Draft {
        operations,
        ..Draft::default()
    };
    draft(vec![250, 250]).round(|round| assert_eq!(round.pushes.len(), 2));
    assert_eq!(draft(vec![250, 251]).error(), ErrorCode::TooManyOperations);
    assert_eq!(draft(vec![501]).error(), ErrorCode::TooManyOperations);
}

#[test]
fn s4_2_rows_must_be_accepted_one_way_at_least() {
    for accept in 0..16 {
        let draft = Draft {
            pull: Some(pull_header(accept)),
            ..Draft::default()
        };
        if accept & 3 == 0 {
            assert_eq!(draft.error(), ErrorCode::InvalidRequest, "{accept:04b}");
        } else {
            draft.round(|round| {
                let accept_read = round.pull.unwrap().limits.accept;
                let bits = u8::from(accept_read.inline_rows())
                    | u8::from(accept_read.external_rows()) << 1
                    | u8::from(accept_read.sqlite()) << 2
                    | u8::from(accept_read.signed_urls()) << 3;
                assert_eq!(bits, accept);
            });
        }
    }
}

#[test]
fn s4_1_subscription_ids_are_unique() {
    let draft = Draft {
        subscriptions: vec![
            subscription("s", "tasks", &[]),
            subscription("s", "tasks", &[]),
        ],
        ..Draft::default()
    };
    assert_eq!(draft.error(), ErrorCode::InvalidSubscription);
}

#[test]
fn s4_3_a_subscription_to_an_unknown_table_fails_the_request() {
    let draft = Draft {
        subscriptions: vec![subscription("s", "nope", &[])],
        ..Draft::default()
    };
    assert_eq!(draft.error(), ErrorCode::UnknownTable);
}

#[test]
fn s3_2_undeclared_variables_and_stars_fail_the_request() {
    for scopes in [[("project", "p")], [("team", "*")]] {
        let draft = Draft {
            subscriptions: vec![subscription("s", "tasks", &scopes)],
            ..Draft::default()
        };
        assert_eq!(draft.error(), ErrorCode::InvalidSubscription);
    }
}

#[test]
fn failures_come_in_the_order_of_the_protocol() {
    // Everything is wrong at once; each step repairs the failure that came first.
    let mut draft = Draft {
        version: WireVersion::V1,
        operations: vec![501],
        pull: Some(pull_header(0)),
        subscriptions: vec![subscription("s", "nope", &[])],
        rotated: true,
        bound_to: Some("bob"),
        ..Draft::default()
    };
    draft.header.schema_version = 4;
    draft.header.log_epoch = None;
    assert_eq!(draft.error(), ErrorCode::ClientWireUnsupported);
    draft.version = WireVersion::V3;
    assert_eq!(
        draft.error(),
        ErrorCode::InvalidRequest,
        "acquisition with a push"
    );
    draft.header.log_epoch = Some("older".into());
    assert!(draft.header_only().required.is_some());
    draft.header.schema_version = 5;
    assert_eq!(draft.header_only().required, None);
    draft.header.log_epoch = Some("epoch".into());
    assert_eq!(draft.error(), ErrorCode::InvalidClientId);
    draft.bound_to = None;
    assert_eq!(draft.error(), ErrorCode::TooManyOperations);
    draft.operations = vec![500];
    assert_eq!(draft.error(), ErrorCode::InvalidRequest, "accept");
    draft.pull = Some(pull_header(1));
    assert_eq!(draft.error(), ErrorCode::UnknownTable);
    draft.subscriptions[0].table = "tasks".into();
    draft.round(|round| assert_eq!(round.pushes.len(), 1));
}

#[test]
fn s4_2_limits_are_clamped_silently() {
    let clamp = |commits, rows, pages| {
        let limits = PullLimits::clamp(&PullHeader {
            limit_commits: commits,
            limit_snapshot_rows: rows,
            max_snapshot_pages: pages,
            accept: 3,
        })
        .unwrap();
        (limits.max_changes, limits.page_rows, limits.max_pages)
    };
    assert_eq!(clamp(0, 0, 0), (1000, 1000, 4));
    assert_eq!(clamp(-1, i32::MIN, -7), (1, 1, 1));
    assert_eq!(clamp(1, 1, 1), (1, 1, 1));
    assert_eq!(clamp(1000, 50_000, 50), (1000, 50_000, 50));
    assert_eq!(clamp(1001, 50_001, 51), (1000, 50_000, 50));
    assert_eq!(clamp(i32::MAX, i32::MAX, i32::MAX), (1000, 50_000, 50));
}
