//! The control endpoint: who gets in, what is refused, and its command line client.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::json;

use crate::panel::{Panel, ctl, refusal};
use crate::process::{CONTROL_TOKEN, Site};

/// Every route, with names that nothing has.
async fn routes(panel: &Panel) -> Vec<(Method, String)> {
    let document = Panel::ok(panel.get("/openapi.json").await);
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.strip_prefix("/control/v1").unwrap();
            let path = path
                .replace("{p}", "nowhere")
                .replace("{actor}", "nobody")
                .replace("{table}", "todos")
                .replace("{name}", "nothing");
            routes.push((method, path));
        }
    }
    assert!(routes.len() > 10);
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_every_route_is_401() {
    let site = Site::new();
    let mut server = site.start(&["--unsafe-test-clock"]);
    let panel = Panel::of(&mut server);
    let mut asked = routes(&panel).await;
    asked.push((Method::GET, "/no/such/route".to_owned()));
    let right = format!("Bearer {CONTROL_TOKEN}");
    let prefix = &right[..right.len() - 1];
    for (method, path) in asked {
        for headers in [
            &[][..],
            &[("authorization", "Bearer wrong")],
            &[("authorization", prefix)],
            &[("authorization", CONTROL_TOKEN)],
            &[("authorization", &right), ("authorization", &right)],
        ] {
            let reply = panel.raw(method.clone(), &path, headers, "{}").await;
            assert_eq!(refusal(&reply), (401, "sync.auth_required"), "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_parameters_are_strict_and_bounded() {
    let site = Site::new();
    let mut server = site.start(&[]);
    let panel = Panel::of(&mut server);
    let token = format!("Bearer {CONTROL_TOKEN}");
    let json = [
        ("authorization", token.as_str()),
        ("content-type", "application/json"),
    ];
    for (method, path) in routes(&panel).await {
        if ![Method::POST, Method::PUT].contains(&method) {
            continue;
        }
        for (body, expected) in [
            ("{", (400, "sync.invalid_request")),
            ("[]", (400, "sync.invalid_request")),
            (r#"{"no_such_key":1}"#, (400, "sync.invalid_request")),
        ] {
            let reply = panel.raw(method.clone(), &path, &json, body).await;
            assert_eq!(refusal(&reply), expected, "{method} {path} {body}");
        }
        let large = format!("{{\"x\":\"{}\"}}", "x".repeat(64 * 1024));
        let reply = panel.raw(method.clone(), &path, &json, large).await;
        assert_eq!(refusal(&reply), (413, "control.body_too_large"), "{path}");
        let text = [json[0], ("content-type", "text/plain")];
        let reply = panel.raw(method.clone(), &path, &text, "{}").await;
        assert_eq!(refusal(&reply), (415, "sync.invalid_request"), "{path}");
    }
    for (query, expected) in [
        ("limit=0", (422, "control.invalid_value")),
        ("limit=1001", (422, "control.invalid_value")),
        ("limit=x", (400, "sync.invalid_request")),
        ("offset=1", (400, "sync.invalid_request")),
    ] {
        for path in [
            "/partitions",
            "/partitions/p/clients",
            "/partitions/p/rows/todos",
        ] {
            let reply = panel.get(&format!("{path}?{query}")).await;
            assert_eq!(refusal(&reply), expected, "{path}?{query}");
        }
    }
    for scopes in [
        json!({"no_such_variable": ["x"]}),
        json!({"list_id": ["x"], "y": []}),
    ] {
        let reply = panel
            .put("/partitions/p/grants/ada", json!({"scopes": scopes}))
            .await;
        assert_eq!(refusal(&reply), (422, "control.invalid_value"));
    }
    let unknown = panel.get("/no/such/route").await;
    assert_eq!(refusal(&unknown), (404, "sync.not_found"));
    for name in ["%00", "x%0Ay", &"x".repeat(513)] {
        let reply = panel.get(&format!("/partitions/{name}")).await;
        assert_eq!(refusal(&reply), (422, "control.invalid_value"), "{name}");
    }
    // A slash in a name is part of it; what is no text names nothing.
    for name in ["a%2Fb", "%FF"] {
        let reply = panel.get(&format!("/partitions/{name}")).await;
        assert_eq!(refusal(&reply), (404, "control.unknown_partition"));
    }
    let wrong = panel.post("/partitions", json!({})).await;
    assert_eq!(refusal(&wrong), (405, "sync.invalid_request"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_test_routes_exist_only_under_the_flag() {
    let site = Site::new();
    let mut server = site.start(&[]);
    let panel = Panel::of(&mut server);
    for (path, body) in [
        ("/test/clock", json!({"set_ms": 5})),
        ("/test/resolver", json!({"mode": "live"})),
    ] {
        let reply = panel.post(path, body).await;
        assert_eq!(refusal(&reply), (404, "sync.not_found"));
    }
    let plain: BTreeSet<String> = routes(&panel)
        .await
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    assert!(!plain.iter().any(|path| path.starts_with("/test/")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_a_server_under_test_can_be_turned() {
    let site = Site::new();
    let mut server = site.start(&["--unsafe-test-clock"]);
    let panel = Panel::of(&mut server);
    let set = panel.post("/test/clock", json!({"set_ms": 1_000})).await;
    assert_eq!(Panel::ok(set), json!({"now_ms": 1_000, "stopped": true}));
    let moved = panel.post("/test/clock", json!({"advance_ms": 500})).await;
    assert_eq!(Panel::ok(moved), json!({"now_ms": 1_500, "stopped": true}));
    for body in [
        json!({}),
        json!({"set_ms": 1, "advance_ms": 1}),
        json!({"set_ms": -1}),
        json!({"advance_ms": i64::MAX}),
    ] {
        let reply = panel.post("/test/clock", body).await;
        assert_eq!(refusal(&reply), (422, "control.invalid_value"));
    }
    let unknown = panel.post("/test/resolver", json!({"mode": "odd"})).await;
    assert_eq!(refusal(&unknown), (400, "sync.invalid_request"));
}

#[test]
fn a_start_that_would_expose_the_endpoint_is_refused() {
    let site = Site::new();
    let refused = |args: &[&str], code: i32, words: &str| {
        let output = site
            .command(args)
            .env_remove("TIDEGATE_CONTROL_TOKEN")
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(output.stdout.is_empty());
        assert!(message.contains(words), "{message}");
    };
    let open = ["--control-listen", "0.0.0.0:0"];
    refused(&open, 2, "control.token");
    let exposed = ["--unsafe-test-clock", "--control-listen", "0.0.0.0:0"];
    refused(&exposed, 2, "loopback");
    let off = ["--unsafe-test-clock", "--control-listen", "off"];
    refused(&off, 2, "needs the control endpoint");
    refused(&["--control-listen", "nowhere"], 2, "control.listen");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--control-listen", &address], 6, &address);
}

#[test]
fn a_start_with_a_short_token_is_refused_without_showing_it() {
    for short in ["?", "fifteen-letters"] {
        let site = Site::new();
        let output = site
            .command(&[])
            .env("TIDEGATE_CONTROL_TOKEN", short)
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(output.stdout.is_empty());
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("control.token"), "{message}");
        assert!(message.contains("at least 16"), "{message}");
        assert!(!message.contains(short), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_test_clock_stays_on_loopback_whatever_is_configured() {
    let site = Site::new();
    let args = [
        "--unsafe-test-clock",
        "--listen",
        "0.0.0.0:0",
        "--insecure-dev-auth",
    ];
    let output = site.command(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("loopback"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_configured_token_the_one_in_the_log_opens_it() {
    let site = Site::new();
    let mut server = site.start_without_token(&[]);
    let url = server.control();
    let line = site.log();
    let line = line
        .lines()
        .find(|line| line.contains("control.token is not set"))
        .unwrap();
    let entry: serde_json::Value = serde_json::from_str(line).unwrap();
    let token = entry["token"]
        .as_str()
        .or_else(|| entry["fields"]["token"].as_str())
        .unwrap();
    assert_eq!(token.len(), 64);
    let output = ctl(&url, Some(token), &["--json", "openapi"]);
    assert_eq!(output.status.code(), Some(0));
    let output = ctl(&url, Some(CONTROL_TOKEN), &["openapi"]);
    assert_eq!(output.status.code(), Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn off_means_no_endpoint_and_one_line_on_standard_output() {
    let site = Site::new();
    let server = site.start(&["--control-listen", "off"]);
    server.terminate();
    assert!(server.wait().success());
    assert!(!site.log().contains("the control endpoint listens"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_says_what_keeps_it_from_an_answer() {
    let site = Site::new();
    let mut server = site.start(&["--unsafe-test-clock"]);
    let panel = Panel::of(&mut server);
    let failed = |output: std::process::Output, code: i32, words: &str| {
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(words), "{message}");
        String::from_utf8(output.stdout).unwrap()
    };
    failed(
        ctl(&panel.url, None, &["openapi"]),
        2,
        "TIDEGATE_CONTROL_TOKEN",
    );
    failed(
        ctl(&panel.url, Some("wrong"), &["openapi"]),
        7,
        "sync.auth_required",
    );
    failed(
        ctl("http://127.0.0.1:1", Some("x"), &["openapi"]),
        7,
        "cannot be reached",
    );
    failed(
        ctl("https://127.0.0.1:1", Some("x"), &["openapi"]),
        2,
        "http://",
    );
    let elsewhere = ctl(&server.url, Some(CONTROL_TOKEN), &["openapi"]);
    failed(elsewhere, 1, "sync.not_found");
    let refused = panel.ctl(&["--json", "clock", "--set-ms=-1"]);
    let body = failed(refused, 1, "control.invalid_value");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["details"]["field"], "set_ms");
    let text = panel.ctl_text(&["clock", "--set-ms", "951782400000"]);
    assert_eq!(text, "now_ms   2000-02-29 00:00:00Z\nstopped  yes\n");
    let text = panel.ctl_text(&["--json", "clock", "--set-ms", "5"]);
    assert_eq!(text, "{\n  \"now_ms\": 5,\n  \"stopped\": true\n}\n");
}
