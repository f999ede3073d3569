//! Recorded rounds of wire version 2: each request is admitted with the header that
//! its recorded answer carries, and its subscriptions are planned as they were answered.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;
use ssp2::{Response, ResponseFrame, decode_request, decode_response};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::{LogBounds, Registry};
use tidegate_engine::pull::{SubPlan, plan, sub_end_bootstrap, sub_start};
use tidegate_engine::round::{Admission, DEFAULT_MAX_OPERATIONS, RoundContext, admit};
use tidegate_engine::schema::Schema;
use tidegate_engine::scopes::effective;
use tidegate_engine::{ActorId, CommitSeq};

/// Plays one recording; returns how many subscriptions it planned.
fn replay(name: &str) -> usize {
    let read = |suffix: &str| {
        let file = format!("tests/data/rounds/{name}.{suffix}");
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
    };
    let facts: Json = serde_json::from_slice(&read("json")).unwrap();
    let schema = Schema::load(&facts["schema"].to_string()).unwrap();
    let actor = ActorId::from(facts["actorId"].as_str().unwrap());
    let request = decode_request(read("req.bin").into()).unwrap();
    let response: Response = decode_response(read("res.bin").into()).unwrap();
    let Some(ResponseFrame::Header(header)) = response.frames.first() else {
        panic!("a response begins with its header");
    };
    let registry = Registry {
        log_epoch: header.epoch.as_ref().unwrap().log_epoch.as_str().into(),
        epoch_required: false,
    };
    let context = RoundContext {
        schema: &schema,
        registry: &registry,
        client: None,
        actor: &actor,
        max_operations: DEFAULT_MAX_OPERATIONS,
    };
    let round = match admit(&request, &context).unwrap() {
        Admission::HeaderOnly(answer) => {
            assert_eq!(&answer.header(), header);
            assert_eq!(response.frames.len(), 1);
            return 0;
        }
        Admission::Round(round) => round,
    };
    assert_eq!(&round.header, header);
    let starts = response.frames.iter().filter_map(|frame| match frame {
        ResponseFrame::SubStart(start) => Some(start),
        _ => None,
    });
    let ends = response.frames.iter().filter_map(|frame| match frame {
        ResponseFrame::SubEnd(end) => Some(end),
        _ => None,
    });
    let pull = round.pull.unwrap();
    for ((sub, start), end) in pull.subscriptions.iter().zip(starts).zip(ends) {
        // The recording does not tell the grants or the log; the answer shows both.
        let allowed = Allowed::Resolved(Arc::new(start.effective_scopes.clone()));
        let bounds = LogBounds {
            max: CommitSeq(end.next_cursor),
            horizon: CommitSeq(0),
        };
        let plan = plan(
            sub,
            &effective(&sub.frame.scopes, &allowed),
            bounds,
            &pull.limits,
        );
        assert_eq!(&sub_start(sub, &plan), start);
        let SubPlan::Bootstrap(pages) = plan else {
            panic!("recorded as a bootstrap");
        };
        assert_eq!(&sub_end_bootstrap(sub, &pages, None), end);
    }
    pull.subscriptions.len()
}

#[test]
fn a_bootstrap_from_the_start() {
    assert_eq!(replay("fresh"), 1);
}

#[test]
fn a_bootstrap_resumed_from_its_token() {
    assert_eq!(replay("resumed"), 1);
}

#[test]
fn a_bootstrap_in_pages_by_reference() {
    assert_eq!(replay("paged"), 1);
}

#[test]
fn a_header_only_answer() {
    assert_eq!(replay("header_only"), 0);
}
