//! A run: clients set up together, loop until the time is over, and add up.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ssp2::ResponseFrame;
use tokio::task::JoinSet;

use crate::check::{Expected, check};
use crate::cli::{Plan, Scenario};
use crate::connection::{Answer, Connection, Credentials};
use crate::measure::{Report, Sample, Tally};
use crate::workload::{Device, Work};

/// A client with this many wrong answers stops: the run has failed anyway.
const ERRORS_PER_CLIENT: u64 = 20;
/// Wrong answers described on standard error by each client.
const ERRORS_TOLD: u64 = 3;
/// Requests a client may need to catch up before the run.
const SETUP_ROUNDS: usize = 1000;

/// Why a load cannot run, or a request has no correct answer.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The load cannot start.
    #[error("{0}")]
    Setup(String),
    /// No answer came.
    #[error("no answer: {0}")]
    Lost(String),
    /// The answer is not what the protocol promises.
    #[error("wrong answer: {0}")]
    Wrong(String),
}

/// A client with its connection.
struct Client {
    device: Device,
    connection: Connection,
    credentials: Credentials,
    requests: u64,
}

/// Runs a plan to its end.
///
/// # Errors
/// When a client cannot be set up; wrong answers during the run are counted instead.
pub async fn run(plan: &Plan) -> Result<Report, LoadError> {
    let run = run_name();
    let mut setups = JoinSet::new();
    for number in 0..plan.clients {
        let plan = plan.clone();
        let run = run.clone();
        setups.spawn(async move { Client::set_up(&plan, &run, number).await });
    }
    let mut clients = Vec::new();
    while let Some(client) = setups.join_next().await {
        clients.push(client.map_err(|error| LoadError::Setup(error.to_string()))??);
    }
    let begin = Instant::now() + plan.warmup;
    let end = begin + plan.measured;
    let mut loops = JoinSet::new();
    for client in clients {
        let plan = plan.clone();
        loops.spawn(async move { client.run(&plan, begin, end).await });
    }
    let mut total = tally()?;
    while let Some(tally) = loops.join_next().await {
        let tally = tally.map_err(|error| LoadError::Setup(error.to_string()))??;
        total
            .merge(&tally)
            .map_err(|error| LoadError::Setup(error.to_string()))?;
    }
    Ok(total.report(plan.shape(), plan.measured))
}

/// An empty tally.
pub fn tally() -> Result<Tally, LoadError> {
    Tally::new().map_err(|error| LoadError::Setup(error.to_string()))
}

/// Tells the clients and lists of this run from those of every other one.
pub fn run_name() -> String {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_nanos());
    format!("load-{nanos:x}-{:x}", std::process::id())
}

impl Client {
    /// Connects, acquires the log epoch, creates the list and bootstraps.
    async fn set_up(plan: &Plan, run: &str, number: u32) -> Result<Self, LoadError> {
        let partition = format!("{}-{}", plan.partition_prefix, number % plan.partitions);
        let credentials = Credentials::new(&plan.token, &partition)?;
        let mut client = Self {
            device: Device::new(plan, run, number)?,
            connection: Connection::open(&plan.target, credentials.clone()).await?,
            credentials,
            requests: 0,
        };
        if plan.scenario == Scenario::Healthz {
            return Ok(client);
        }
        if client.device.needs_epoch() {
            let answer = client.connection.sync(client.device.acquisition()?).await?;
            client.device.accept_epoch(epoch_of(answer)?);
        }
        let (body, expected) = client.device.list_request()?;
        client.exchange(body, &expected).await?;
        let pull = Work {
            push: false,
            pull: true,
        };
        for _ in 0..SETUP_ROUNDS {
            let (body, expected) = client.device.request(pull)?;
            client.exchange(body, &expected).await?;
            if client.device.is_bootstrapped() {
                return Ok(client);
            }
        }
        Err(LoadError::Setup("the bootstrap does not end".to_owned()))
    }

    /// Loops until `end`. Answers that arrive within the measured time are counted,
    /// wrong ones always.
    async fn run(mut self, plan: &Plan, begin: Instant, end: Instant) -> Result<Tally, LoadError> {
        let mut tally = tally()?;
        loop {
            let sent = Instant::now();
            if sent >= end {
                return Ok(tally);
            }
            let outcome = self.step(plan.scenario).await;
            let done = Instant::now();
            match outcome {
                Ok(sample) if done >= begin && done <= end => tally.record(&Sample {
                    latency: done - sent,
                    ..sample
                }),
                Ok(_) => {}
                Err(error) => {
                    tally.errors += 1;
                    if tally.errors <= ERRORS_TOLD {
                        eprintln!("tidegate-load: {error}");
                    }
                    if tally.errors >= ERRORS_PER_CLIENT || !self.recover(plan, &error).await {
                        return Ok(tally);
                    }
                }
            }
        }
    }

    /// Whether the client can go on after an error: a lost connection is opened again.
    async fn recover(&mut self, plan: &Plan, error: &LoadError) -> bool {
        if !matches!(error, LoadError::Lost(_)) {
            return true;
        }
        match Connection::open(&plan.target, self.credentials.clone()).await {
            Ok(connection) => {
                self.connection = connection;
                true
            }
            Err(_) => false,
        }
    }

    async fn step(&mut self, scenario: Scenario) -> Result<Sample, LoadError> {
        let n = self.requests;
        self.requests += 1;
        let Some(work) = Work::of(scenario, n) else {
            let answer = self.connection.healthz().await?;
            let body = body_of(answer)?;
            return Ok(Sample {
                bytes_in: body.len() as u64,
                ..Sample::default()
            });
        };
        let (body, expected) = self.device.request(work)?;
        self.exchange(body, &expected).await
    }

    async fn exchange(
        &mut self,
        body: bytes::Bytes,
        expected: &Expected,
    ) -> Result<Sample, LoadError> {
        let bytes_out = body.len() as u64;
        let answer = body_of(self.connection.sync(body).await?)?;
        let bytes_in = answer.len() as u64;
        let response =
            ssp2::decode_response(answer).map_err(|error| LoadError::Wrong(error.to_string()))?;
        let progress = check(response, expected).map_err(LoadError::Wrong)?;
        let commits = u64::from(progress.applied.is_some());
        self.device.advance(progress);
        Ok(Sample {
            latency: Duration::ZERO,
            round: true,
            commits,
            bytes_in,
            bytes_out,
        })
    }
}

fn body_of(answer: Answer) -> Result<bytes::Bytes, LoadError> {
    if answer.status == 200 {
        return Ok(answer.body);
    }
    let said = String::from_utf8_lossy(&answer.body);
    let said: String = said.chars().take(200).collect();
    Err(LoadError::Wrong(format!(
        "HTTP {}: {said}",
        answer.status.as_u16()
    )))
}

/// The epoch of an acquisition's answer (§2.1).
fn epoch_of(answer: Answer) -> Result<String, LoadError> {
    let response = ssp2::decode_response(body_of(answer)?)
        .map_err(|error| LoadError::Wrong(error.to_string()))?;
    match response.frames.into_iter().next() {
        Some(ResponseFrame::Header(header)) => header.epoch.map(|epoch| epoch.log_epoch),
        _ => None,
    }
    .ok_or_else(|| LoadError::Wrong("no log epoch".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use bytes::Bytes;
    use clap::Parser;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::{Request, service::service_fn};
    use hyper_util::rt::TokioIo;
    use ssp2::{
        Commit, EpochHeader, PushResult, PushStatus, RequestFrame, Response, ResponseHeader,
        SubEnd, SubStart, SubStatus,
    };
    use tokio::net::TcpListener;

    use super::*;
    use crate::cli::Cli;

    /// A server of one log without rows: right in everything the load checks, but for
    /// every `wrong`th commit, which it does not send back.
    #[derive(Default)]
    struct Toy {
        seq: AtomicI64,
        rounds: AtomicU64,
        wrong: u64,
    }

    impl Toy {
        fn answer(&self, body: Bytes) -> Bytes {
            let request = ssp2::decode_request(body).unwrap();
            let acquiring = matches!(&request.frames[0],
                RequestFrame::Header(header) if header.log_epoch.is_none());
            let mut frames = vec![ResponseFrame::Header(ResponseHeader {
                required_schema_version: None,
                latest_schema_version: None,
                epoch: Some(EpochHeader {
                    log_epoch: "e".into(),
                    reset_required: acquiring,
                }),
            })];
            let mut applied = None;
            for frame in &request.frames {
                match frame {
                    RequestFrame::PushCommit(commit) => {
                        let seq = self.seq.fetch_add(1, Ordering::SeqCst) + 1;
                        applied = Some(seq);
                        frames.push(ResponseFrame::PushResult(PushResult {
                            client_commit_id: commit.client_commit_id.clone(),
                            status: PushStatus::Applied(seq),
                            results: Vec::new(),
                        }));
                    }
                    RequestFrame::Subscription(subscription) => {
                        let bootstrap = subscription.cursor < 0;
                        frames.push(ResponseFrame::SubStart(SubStart {
                            id: subscription.id.clone(),
                            status: SubStatus::Active,
                            reason_code: String::new(),
                            effective_scopes: subscription.scopes.clone(),
                            bootstrap,
                        }));
                        let round = self.rounds.fetch_add(1, Ordering::SeqCst) + 1;
                        let kept = self.wrong == 0 || !round.is_multiple_of(self.wrong);
                        if let Some(commit_seq) = applied.filter(|_| kept) {
                            frames.push(ResponseFrame::Commit(Commit {
                                commit_seq,
                                created_at_ms: 0,
                                actor_id: "load".into(),
                                tables: Vec::new(),
                                changes: Vec::new(),
                            }));
                        }
                        frames.push(ResponseFrame::SubEnd(SubEnd {
                            next_cursor: applied.unwrap_or(subscription.cursor).max(0),
                            bootstrap_state: None,
                        }));
                    }
                    _ => {}
                }
            }
            ssp2::encode_response(&Response {
                version: request.version,
                frames,
            })
            .unwrap()
        }
    }

    async fn serve(toy: Arc<Toy>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let toy = Arc::clone(&toy);
                let service = service_fn(move |request: Request<Incoming>| {
                    let toy = Arc::clone(&toy);
                    async move {
                        let path = request.uri().path().to_owned();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let mut response = hyper::Response::new(Full::<Bytes>::default());
                        match path.as_str() {
                            "/sync" => *response.body_mut() = toy.answer(body).into(),
                            "/healthz" => *response.body_mut() = "ok".into(),
                            _ => *response.status_mut() = hyper::StatusCode::NOT_FOUND,
                        }
                        Ok::<_, Infallible>(response)
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service),
                );
            }
        });
        url
    }

    fn plan(url: &str, args: &[&str]) -> Plan {
        let short = ["x", "--seconds", "0.2", "--warmup", "0", "--clients", "3"];
        Cli::try_parse_from([&short, args].concat())
            .unwrap()
            .load
            .load
            .plan(url)
            .unwrap()
    }

    #[tokio::test]
    async fn every_round_of_a_correct_server_is_counted_as_one() {
        let toy = Arc::new(Toy::default());
        let url = serve(Arc::clone(&toy)).await;
        let report = run(&plan(&url, &[])).await.unwrap();
        assert_eq!(report.errors, 0);
        assert!(report.rounds > 0);
        assert_eq!(
            (report.requests, report.commits),
            (report.rounds, report.rounds)
        );
        // Beside the measured commits: a list for each client, and at most one commit
        // of each whose answer came after the end.
        let applied = toy.seq.load(Ordering::SeqCst).cast_unsigned();
        assert!((report.commits + 3..=report.commits + 6).contains(&applied));
        assert!(report.bytes_out > 100 * report.rounds && report.bytes_in > 0);
        assert!(report.p50_us <= report.p99_us && report.p99_us <= report.max_us);
    }

    #[tokio::test]
    async fn scenarios_push_and_pull_what_they_say() {
        let url = serve(Arc::new(Toy::default())).await;
        let of = async |scenario| run(&plan(&url, &["--scenario", scenario])).await.unwrap();
        let pull = of("pull-only").await;
        assert!(pull.rounds > 0 && pull.commits == 0 && pull.errors == 0);
        let push = of("push-only").await;
        assert!(push.commits > 0 && push.commits == push.rounds && push.errors == 0);
        let mixed = of("mixed").await;
        assert!(mixed.commits > 0 && mixed.commits < mixed.rounds && mixed.errors == 0);
        let health = of("healthz").await;
        assert!(health.requests > 0 && health.rounds == 0 && health.errors == 0);
        assert_eq!(health.bytes_in, 2 * health.requests);
    }

    #[tokio::test]
    async fn wrong_answers_are_errors_and_nothing_else() {
        let url = serve(Arc::new(Toy {
            wrong: 5,
            ..Toy::default()
        }))
        .await;
        let report = run(&plan(&url, &[])).await.unwrap();
        assert!(report.errors > 0 && report.errors <= 3 * ERRORS_PER_CLIENT);
        assert_eq!(report.commits, report.rounds);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_an_error_before_the_run() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        assert!(matches!(
            run(&plan(&url, &[])).await,
            Err(LoadError::Lost(_))
        ));
    }
}
