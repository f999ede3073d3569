//! An operator before the control endpoint of a server.

use std::process::{Command, Output, Stdio};

use reqwest::Method;
use serde_json::Value as Json;
use tidegate_client::{HttpTransport, OutcomeStatus, SyncClient};

use crate::process::{CONTROL_TOKEN, PATIENCE, Server, Site, repository};
use crate::scenario::todo;

/// Speaks to one control endpoint.
pub struct Panel {
    pub url: String,
    client: reqwest::Client,
}

/// An answer: status and body.
pub type Reply = (u16, Json);

impl Panel {
    pub fn of(server: &mut Server) -> Self {
        Self {
            url: server.control(),
            // Each request on a connection of its own: between two of them a busy machine
            // may let so much time pass that the server closes an idle one.
            client: reqwest::Client::builder()
                .pool_max_idle_per_host(0)
                .build()
                .unwrap(),
        }
    }

    /// A request with headers and a body of the caller's choice.
    pub async fn raw(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Reply {
        let url = format!("{}/control/v1{path}", self.url);
        let mut request = self.client.request(method, url).body(body);
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let body = response.bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// A request as the operator; `null` is no body.
    pub async fn send(&self, method: Method, path: &str, body: Option<Json>) -> Reply {
        let token = format!("Bearer {CONTROL_TOKEN}");
        let mut headers = vec![("authorization", token.as_str())];
        let body = body.filter(|body| !body.is_null());
        let body = body.map(|body| body.to_string());
        if body.is_some() {
            headers.push(("content-type", "application/json"));
        }
        self.raw(method, path, &headers, body.unwrap_or_default())
            .await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Json) -> Reply {
        self.send(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Json) -> Reply {
        self.send(Method::PUT, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, None).await
    }

    /// The body of an answer that must be a success.
    #[track_caller]
    pub fn ok((status, body): Reply) -> Json {
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Runs `tidegate ctl` against it.
    pub fn ctl(&self, args: &[&str]) -> Output {
        ctl(&self.url, Some(CONTROL_TOKEN), args)
    }

    /// What `tidegate ctl` prints when it succeeds.
    #[track_caller]
    pub fn ctl_text(&self, args: &[&str]) -> String {
        let output = self.ctl(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert_eq!(errors, "");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Runs `tidegate ctl`.
pub fn ctl(url: &str, token: Option<&str>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .arg("ctl")
        .args(args)
        .env("TIDEGATE_CONTROL_URL", url)
        .env_remove("TIDEGATE_CONTROL_TOKEN")
        .current_dir(repository(""))
        .stdin(Stdio::null());
    if let Some(token) = token {
        command.env("TIDEGATE_CONTROL_TOKEN", token);
    }
    command.output().unwrap()
}

/// Status and code of a refusal, which must have the wire's shape.
#[track_caller]
pub fn refusal((status, body): &Reply) -> (u16, &str) {
    for member in ["code", "category", "recommendedAction", "message"] {
        assert!(body[member].is_string(), "{status} {body}");
    }
    assert!(body["retryable"].is_boolean(), "{body}");
    (*status, body["code"].as_str().unwrap())
}

/// Asks until the answer is as wanted.
pub async fn eventually(panel: &Panel, path: &str, reached: impl Fn(&Json) -> bool) -> Json {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = Panel::ok(panel.get(path).await);
        if reached(&answer) {
            return answer;
        }
        assert!(std::time::Instant::now() < deadline, "{path}: {answer}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A client of the shared list.
pub type Phone = SyncClient<HttpTransport>;

/// A server, and its operator.
pub fn open(site: &Site, args: &[&str]) -> (Server, Panel) {
    let mut server = site.start(args);
    let panel = Panel::of(&mut server);
    (server, panel)
}

/// Pushes a todo; how it ended.
pub async fn commit(client: &mut Phone, id: &str, title: &str) -> OutcomeStatus {
    let commit = client.edit([todo(id, title)]).unwrap();
    client.sync().await.unwrap();
    client.outcome(&commit).unwrap().clone()
}
