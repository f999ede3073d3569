//! The bytes of one answer: it ends early, and a client still gets everything.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A subscription of a client, with its progress and the commits and rows it got.
#[derive(Default)]
struct Sub {
    cursor: i64,
    state: Option<String>,
    rows: BTreeSet<String>,
    commits: Vec<i64>,
    /// Whether the first page of its bootstrap has come, which clears what was there.
    begun: bool,
}

struct Replica {
    accept: u8,
    subs: BTreeMap<String, Sub>,
}

/// What one answer held.
struct Answered {
    /// Bytes of it.
    bytes: usize,
    /// Whether a client has a reason to pull again at once.
    again: bool,
}

impl Replica {
    fn new(accept: u8, cursor: i64, subs: usize) -> Self {
        let sub = |number| {
            let sub = Sub {
                cursor,
                ..Sub::default()
            };
            (format!("s{number:04}"), sub)
        };
        Self {
            accept,
            subs: (0..subs).map(sub).collect(),
        }
    }

    /// One round; checks every rule of an answer that concerns its end.
    async fn round(&mut self, device: &Device<'_>) -> Answered {
        let mut pull = vec![pull_header(self.accept, 0)];
        for (id, sub) in &self.subs {
            let RequestFrame::Subscription(mut frame) = todos(sub.cursor, sub.state.clone()) else {
                panic!("a subscription");
            };
            frame.id.clone_from(id);
            pull.push(RequestFrame::Subscription(frame));
        }
        let reply = device.round(vec![], Some(pull)).await;
        let mut again = false;
        let mut open = None;
        for frame in reply.message().frames {
            match frame {
                ResponseFrame::SubStart(start) => {
                    assert_eq!(start.status, SubStatus::Active);
                    let fresh = self.subs[&start.id].cursor < 0;
                    open = Some((start.id, start.bootstrap, fresh, 0));
                }
                ResponseFrame::SegmentInline(bytes) => {
                    let (id, _, fresh, segments) = open.as_mut().unwrap();
                    *segments += 1;
                    let sub = self.subs.get_mut(id).unwrap();
                    if *fresh && !sub.begun {
                        sub.begun = true;
                        sub.rows.clear();
                    }
                    let segment = ssp2::decode_segment(bytes).unwrap();
                    for row in segment.blocks.iter().flatten() {
                        let Value::Text(row_id) = &row.values[0] else {
                            panic!("{row:?}");
                        };
                        assert!(sub.rows.insert(row_id.clone()), "{row_id} came twice");
                    }
                }
                ResponseFrame::SegmentRef(_) => open.as_mut().unwrap().3 += 1,
                ResponseFrame::Commit(commit) => {
                    again = true;
                    let (id, ..) = open.as_ref().unwrap();
                    self.subs
                        .get_mut(id)
                        .unwrap()
                        .commits
                        .push(commit.commit_seq);
                }
                ResponseFrame::SubEnd(end) => {
                    let (id, bootstrap, _, segments) = open.take().unwrap();
                    assert_eq!(bootstrap, segments > 0, "SUB_START says what comes");
                    again |= end.bootstrap_state.is_some();
                    let sub = self.subs.get_mut(&id).unwrap();
                    assert!(end.next_cursor >= sub.cursor);
                    (sub.cursor, sub.state) = (end.next_cursor, end.bootstrap_state);
                }
                ResponseFrame::Header(_) => {}
                other => panic!("{other:?}"),
            }
        }
        Answered {
            bytes: reply.2.len(),
            again,
        }
    }

    /// Rounds as long as a client has a reason for one; returns the largest answer.
    async fn sync(&mut self, device: &Device<'_>) -> (usize, usize) {
        let (mut rounds, mut largest) = (0, 0);
        loop {
            let answered = self.round(device).await;
            rounds += 1;
            assert!(rounds < 1_000, "no progress");
            largest = largest.max(answered.bytes);
            if !answered.again {
                return (rounds, largest);
            }
        }
    }
}

/// A service whose answers end after `bytes`, and whose log has `commits` commits
/// of one large row each.
async fn filled(
    bytes: usize,
    commits: usize,
    change: impl FnOnce(&mut Config),
) -> web::Data<Service> {
    let service = service(|config| {
        config.limits.max_pull_bytes = bytes;
        change(config);
    })
    .await;
    let device = Device::joined(&service).await;
    let title = "x".repeat(50_000);
    for number in 0..commits {
        let id = format!("c{number}");
        let response = device
            .round(vec![commit(&id, [number], &title)], None)
            .await;
        assert_eq!(response.0, 200);
    }
    service
}

#[actix_web::test]
async fn bootstraps_beyond_the_budget_are_postponed_and_all_complete() {
    let service = filled(120_000, 5, |_| {}).await;
    let device = Device::joined(&service).await;
    let mut replica = Replica::new(0b01, -1, 8);
    let (rounds, largest) = replica.sync(&device).await;
    // Each row that fits, one that does not, and what every subscription costs.
    assert!(largest < 120_000 + 60_000 + 8 * 1_000, "{largest}");
    assert!(rounds >= 8 * 5 / 3, "{rounds}");
    for (id, sub) in &replica.subs {
        assert!(sub.begun, "{id}");
        assert_eq!(sub.rows.len(), 5, "{id}");
        assert_eq!(sub.cursor, 5);
    }
}

#[actix_web::test]
async fn a_postponed_bootstrap_goes_on_at_the_pin_it_was_promised() {
    let service = filled(60_000, 3, |_| {}).await;
    let device = Device::joined(&service).await;
    let mut replica = Replica::new(0b01, -1, 3);
    replica.round(&device).await;
    // The log moves on in between.
    device
        .round(vec![commit("later", [7], "later")], None)
        .await
        .message();
    assert!(replica.subs.values().all(|sub| sub.cursor == 3));
    replica.sync(&device).await;
    for sub in replica.subs.values() {
        assert_eq!(sub.cursor, 4);
        assert!(sub.rows.len() + sub.commits.len() >= 4);
    }
}

#[actix_web::test]
async fn windows_beyond_the_budget_are_postponed_and_all_complete() {
    // Once from the partition's memory, once from the database.
    for tail_bytes in [1 << 22, 0] {
        let service = filled(120_000, 5, |config| {
            config.partition.tail_bytes = tail_bytes
        })
        .await;
        let device = Device::joined(&service).await;
        let mut replica = Replica::new(0b11, 0, 8);
        let (rounds, largest) = replica.sync(&device).await;
        assert!(largest < 120_000 + 60_000 + 8 * 1_000, "{largest}");
        assert!(rounds >= 8 * 5 / 3, "{rounds}");
        for (id, sub) in &replica.subs {
            assert_eq!(sub.commits, [1, 2, 3, 4, 5], "{id}");
            assert_eq!(sub.cursor, 5);
        }
    }
}

#[actix_web::test]
async fn a_window_behind_a_bootstrap_that_takes_all_is_not_left_unnoticed() {
    let service = filled(60_000, 1, |config| config.partition.tail_bytes = 0).await;
    let device = Device::joined(&service).await;
    let mut replica = Replica::new(0b01, -1, 2);
    // The bootstrap completes and spends everything: nothing in it says "pull again".
    replica.subs.get_mut("s0001").unwrap().cursor = 0;
    replica.sync(&device).await;
    assert_eq!(replica.subs["s0000"].rows.len(), 1);
    assert_eq!(replica.subs["s0001"].commits, [1]);
    assert!(replica.subs.values().all(|sub| sub.cursor == 1));
}

#[actix_web::test]
async fn what_a_client_has_caught_up_with_costs_nothing_in_a_full_answer() {
    let service = filled(1, 3, |_| {}).await;
    let device = Device::joined(&service).await;
    let mut replica = Replica::new(0b11, 0, 4);
    // A round serves the first that is behind, and one that is caught up never is.
    for served in 0..12 {
        let answered = replica.round(&device).await;
        assert!(answered.again);
        let commits: usize = replica.subs.values().map(|sub| sub.commits.len()).sum();
        assert_eq!(commits, served + 1);
    }
    assert!(!replica.round(&device).await.again);
}

#[actix_web::test]
async fn equal_bootstraps_of_one_answer_are_built_once() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let title = "x".repeat(400_000);
    device
        .round(vec![commit("c1", [1, 2], &title)], None)
        .await
        .message();
    let mut replica = Replica::new(0b11, -1, 500);
    let (rounds, largest) = replica.sync(&device).await;
    assert_eq!(rounds, 1);
    assert!(largest < 500 * 1_000, "{largest}");
    assert!(
        service.segments.bytes() < 1_000_000,
        "{}",
        service.segments.bytes()
    );
}

#[actix_web::test]
async fn answers_that_nobody_reads_make_the_next_ones_smaller() {
    // 40 rows of 50,000 bytes: 2 MB in all, more than four answers may hold at once.
    let service = filled(1 << 30, 40, |config| {
        config.limits.max_pulls_bytes = 4_000_000;
    })
    .await;
    let device = Device::joined(&service).await;
    let app = init_service(App::new().app_data(service.clone()).configure(routes)).await;
    let mut unread = Vec::new();
    let mut held = Vec::new();
    for _ in 0..30 {
        let request = sync_request(device.body(vec![], Some(vec![todos(0, None)])));
        let response: ServiceResponse<_> = call_service(&app, request.to_request()).await;
        assert_eq!(response.status().as_u16(), 200);
        unread.push(response);
        held.push(service.pulls.held());
    }
    let first = held[0];
    let last = held[29] - held[28];
    assert!(first > 900_000, "{first}");
    // A row fits always, and what is small is encoded at once.
    assert!(last < 200_000, "{last}");
    assert!(held[29] < 4_000_000 + 30 * 200_000, "{held:?}");
    let whole = read_body(unread.remove(0)).await;
    assert!(whole.len() > 900_000);
    drop(unread);
    assert_eq!(service.pulls.held(), 0);
    // With the memory back, an answer is as large as at first.
    let again = device.round(vec![], Some(vec![todos(0, None)])).await;
    assert!(again.2.len() >= whole.len());
}
