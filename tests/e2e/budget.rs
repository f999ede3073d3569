//! Answers that cannot hold everything: a client gets all of it in several, and the
//! server never holds more than one of them.

use ssp2::{PullHeader, Request, RequestFrame, RequestHeader, ResponseFrame, Subscription};
use tidegate_client::{Edit, WireVersion};

use crate::process::{Backend, Server, Site, on_each_database};
use crate::scenario::{LIST, client, todo};

on_each_database!(a_client_with_far_more_data_than_an_answer_holds_converges);

/// The list of a number; the shared one is the first.
fn list(number: usize) -> String {
    match number {
        0 => LIST.to_owned(),
        _ => format!("list-{number}"),
    }
}

fn item(id: &str, number: usize, title: &str) -> Edit {
    todo(id, title).set("list_id", list(number))
}

async fn a_client_with_far_more_data_than_an_answer_holds_converges(on: Backend) {
    const LISTS: usize = 12;
    let site = Site::on(on);
    std::fs::write(
        site.path("small.toml"),
        "[limits]\nmax_pull_bytes = 150000\n[partition]\ntail_bytes = 0\n",
    )
    .unwrap();
    let server = site.start(&["--config", "small.toml"]);
    let title = "y".repeat(60_000);
    let mut ada = client(&server.url, "ada");
    for number in 0..LISTS {
        for row in 0..3 {
            let id = format!("r{number}-{row}");
            ada.edit([item(&id, number, &title)]).unwrap();
        }
    }
    ada.sync().await.unwrap();

    let mut ben = client(&server.url, "ben");
    for number in 1..LISTS {
        let id = format!("todos-{number}");
        ben.subscribe(&id, "todos", [("list_id", vec![list(number)])])
            .unwrap();
    }
    let joined = ben.sync().await.unwrap();
    assert!(joined.rounds > LISTS, "{joined:?}");
    assert_eq!(ben.replica().len("todos"), LISTS * 3);
    assert!(ben.subscriptions().iter().all(|sub| sub.is_complete()));

    // And what comes later, as commits.
    for number in 0..LISTS {
        ada.edit([item(&format!("late-{number}"), number, &title)])
            .unwrap();
        ada.edit([Edit::delete("todos", format!("r{number}-0"))])
            .unwrap();
    }
    ada.sync().await.unwrap();
    let followed = ben.sync().await.unwrap();
    assert!(followed.rounds > LISTS / 3, "{followed:?}");
    for number in 0..LISTS {
        let row = |id: String| ben.replica().row("todos", &id).is_some();
        assert!(row(format!("late-{number}")) && row(format!("r{number}-1")));
        assert!(!row(format!("r{number}-0")));
    }
}

/// The most memory that a process ever held, bytes.
fn peak_memory(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_subscriptions_to_one_large_row_do_not_multiply_it() {
    const MIB: usize = 1 << 20;
    let site = Site::new();
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    ada.edit([todo(&"i".repeat(MIB), "a row with a long name")])
        .unwrap();
    ada.sync().await.unwrap();

    let before = peak_memory(&server);
    for cursor in [-1, 0] {
        let mut frames = vec![
            RequestFrame::Header(RequestHeader {
                client_id: "ada".to_owned(),
                schema_version: ada.schema().version(),
                log_epoch: ada.log_epoch().map(str::to_owned),
            }),
            RequestFrame::PullHeader(PullHeader {
                limit_commits: 0,
                limit_snapshot_rows: 0,
                max_snapshot_pages: 0,
                accept: 0b11,
            }),
        ];
        frames.extend((0..1_000).map(|number| {
            RequestFrame::Subscription(Subscription {
                id: format!("s{number}"),
                table: "todos".to_owned(),
                scopes: [("list_id", vec![LIST.to_owned()])].into_iter().collect(),
                params: None,
                cursor,
                bootstrap_state: None,
            })
        }));
        let body = ssp2::encode_request(&Request {
            version: WireVersion::V3,
            frames,
        });
        let answer = ada.send_raw(body.unwrap()).await.unwrap();
        assert!(answer.len() < 40 * MIB, "{} bytes", answer.len());
        let answer = ssp2::decode_response(answer).unwrap();
        let ends = answer.frames.iter();
        let ends = ends.filter(|frame| matches!(frame, ResponseFrame::SubEnd(_)));
        assert_eq!(ends.count(), 1_000);
    }
    // `max_pull_bytes` is 32 MiB; an answer is in memory as frames and as a piece on its way.
    let grown = peak_memory(&server) - before;
    assert!(grown < 100 * MIB, "{} MiB more", grown / MIB);
}
