//! What an operator scripts against: start, stop, exit codes, commands.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::process::{Site, repository};
use crate::scenario::{client, todo};

fn tidegate(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .current_dir(repository(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_finishes_and_exits_0_and_the_data_is_there_after_a_restart() {
    let site = Site::new();
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    ada.edit([todo("t1", "bread")]).unwrap();
    ada.sync().await.unwrap();
    server.terminate();
    let status = server.wait();
    assert_eq!(status.code(), Some(0), "{}", site.log());
    let server = site.start(&[]);
    let mut witness = client(&server.url, "witness");
    witness.sync().await.unwrap();
    assert_eq!(
        witness.replica().versioned_dump(),
        ada.replica().versioned_dump()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness_answer() {
    let site = Site::new();
    let server = site.start(&[]);
    for path in ["healthz", "readyz"] {
        let response = reqwest::get(format!("{}/{path}", server.url))
            .await
            .unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
    }
    let unknown = reqwest::get(format!("{}/nowhere", server.url))
        .await
        .unwrap();
    assert_eq!(unknown.status().as_u16(), 404);
}

#[test]
fn development_authentication_refuses_an_address_that_is_not_loopback() {
    let site = Site::new();
    let output = site.command(&["--listen", "0.0.0.0:0"]).output().unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--insecure-dev-auth"), "{message}");
}

#[test]
fn inspect_check_accepts_every_recorded_round_and_valid_vector() {
    let mut files = Vec::new();
    for folder in [
        "tests/data/traces",
        "tests/data/vectors/v1-v2/request",
        "tests/data/vectors/v1-v2/response",
        "tests/data/vectors/v1-v2/segment",
    ] {
        for entry in std::fs::read_dir(repository(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "bin") {
                files.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    assert!(files.len() > 90, "{}", files.len());
    let mut args = vec!["inspect", "--check"];
    args.extend(files.iter().map(String::as_str));
    let output = tidegate(&args);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn inspect_check_names_an_undecodable_file_and_exits_1() {
    let bad = repository("tests/data/vectors/v1-v2/request/invalid/truncated-no-end.bin");
    let good = repository("tests/data/vectors/v1-v2/request/combined.bin");
    let output = tidegate(&[
        "inspect",
        "--check",
        bad.to_str().unwrap(),
        good.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("truncated-no-end.bin"), "{message}");
    assert!(!message.contains("combined.bin"), "{message}");
}

#[test]
fn inspect_renders_the_canonical_json() {
    let file = repository("tests/data/vectors/v1-v2/response/push-conflict.bin");
    let output = tidegate(&["inspect", file.to_str().unwrap()]);
    assert!(output.status.success());
    let rendered: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = std::fs::read(file.with_extension("json")).unwrap();
    assert_eq!(
        rendered,
        serde_json::from_slice::<Value>(&expected).unwrap()
    );
}

#[test]
fn check_explains_a_good_schema_and_every_rule_a_bad_one_breaks() {
    let good = tidegate(&["check", "--schema", "config/schemas/demo.json"]);
    assert!(good.status.success());
    assert!(String::from_utf8_lossy(&good.stdout).contains("todos"));
    let site = Site::new();
    let path = site.path("bad.json");
    std::fs::write(
        &path,
        r#"{"version":1,"tables":[
            {"name":"sync_x","primaryKey":"id","columns":[{"name":"id","type":"float","nullable":false}],"scopes":[]}]}"#,
    )
    .unwrap();
    let bad = tidegate(&["check", "--schema", path.to_str().unwrap()]);
    assert!(!bad.status.success());
    let message = format!(
        "{}{}",
        String::from_utf8_lossy(&bad.stdout),
        String::from_utf8_lossy(&bad.stderr)
    );
    assert!(message.matches("tables[0]").count() >= 3, "{message}");
}

#[test]
fn the_demo_tells_its_story_and_converges() {
    let output = tidegate(&["demo"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.to_lowercase().contains("conflict"), "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_log_on_a_full_disk_breaks_no_request() {
    let site = Site::new();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut server = site.start_logging_to(&[], full);
    for _ in 0..3 {
        // A refusal is logged, which cannot work here.
        let refused = reqwest::Client::new()
            .post(format!("{}/sync", server.url))
            .header("authorization", "Bearer ada")
            .header("content-type", "application/vnd.syncular.sync.v2")
            .body("no message")
            .send()
            .await
            .unwrap();
        assert_eq!(refused.status().as_u16(), 400);
    }
    assert!(server.is_running());
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));
}

/// A request that never ends keeps the server from stopping by itself.
async fn endless_request(url: &str) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt;
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = "POST /sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ada\r\nExpect: 100-continue\r\n\
        Content-Type: application/vnd.syncular.sync.v2\r\nContent-Length: 9\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer)
        .await
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_arrives_twice_at_once_is_one_and_a_later_one_is_obeyed() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let site = Site::new();
    let server = site.start(&[]);
    let mut stream = endless_request(&server.url).await;
    server.terminate();
    server.terminate();
    // The request in flight is still answered.
    stream.write_all(b"too short").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.contains("HTTP/1.1 400"), "{text}");
    assert_eq!(server.wait().code(), Some(0));

    let mut server = site.start(&[]);
    let _stream = endless_request(&server.url).await;
    while server.is_running() {
        server.terminate();
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(server.wait().code(), Some(8));
    assert!(site.log().contains("a second signal arrived"));
}
