//! From a command to the request it stands for.

use serde_json::{Map, Value as Json, json};

use super::{CheckpointArgs, CtlCommand, GrantsCommand, PageArgs};

/// A request of the control endpoint, and how its answer is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// HTTP method.
    pub method: &'static str,
    /// Path and query, encoded.
    pub path: String,
    /// Body; `None` = none.
    pub body: Option<Json>,
    /// How to show the answer to people.
    pub show: Show,
}

/// How an answer is shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// A line per member.
    Object,
    /// The same for a checkpoint that was taken up, and whether that ended a pause.
    TakenUp,
    /// A table.
    List(List),
    /// The plan of a migration.
    Plan,
    /// As it is.
    Json,
}

/// A list in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// The member that holds it.
    pub member: &'static str,
    /// Members of its items, a column each.
    pub columns: &'static [&'static str],
    /// A member of the items whose members are columns too.
    pub spread: Option<&'static str>,
}

const fn table(member: &'static str, columns: &'static [&'static str]) -> Show {
    Show::List(List {
        member,
        columns,
        spread: None,
    })
}

const PARTITIONS: Show = table(
    "partitions",
    &[
        "partition",
        "max_commit_seq",
        "horizon_seq",
        "required_writer_version",
        "held",
        "last_authenticated_at_ms",
        "log_epoch",
    ],
);
const CLIENTS: Show = table(
    "clients",
    &[
        "client",
        "actor",
        "wire_version",
        "cursor",
        "subscriptions",
        "updated_at_ms",
    ],
);
const CHECKPOINTS: Show = table(
    "checkpoints",
    &[
        "name",
        "schema_version",
        "state",
        "phase",
        "rows_done",
        "rows_total",
        "rows_per_second",
        "left_ms",
        "workers_running",
        "workers_wanted",
        "watermark_seq",
        "owner_epoch",
        "owned_here",
        "last_error",
    ],
);
const ROWS: Show = Show::List(List {
    member: "rows",
    columns: &["row_id", "version", "scopes"],
    spread: Some("values"),
});

/// `VARIABLE=VALUE[,VALUE…]`
///
/// # Errors
/// What is expected.
pub fn scope(text: &str) -> Result<(String, Vec<String>), String> {
    match text.split_once('=') {
        Some((variable, values)) if !variable.is_empty() && !values.is_empty() => Ok((
            variable.to_owned(),
            values.split(',').map(str::to_owned).collect(),
        )),
        _ => Err("expected VARIABLE=VALUE[,VALUE…]".to_owned()),
    }
}

/// Milliseconds, or `none`.
///
/// # Errors
/// What is expected.
pub fn milliseconds_or_none(text: &str) -> Result<f64, String> {
    match text {
        "none" => Ok(f64::INFINITY),
        _ => match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err("expected milliseconds, or none".to_owned()),
        },
    }
}

/// One segment of a path, or one value of a query.
fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    // A segment of dots alone would be taken for a step up.
    if out.bytes().all(|byte| byte == b'.') {
        out = out.replace('.', "%2E");
    }
    out
}

fn paged(page: &PageArgs) -> String {
    let after = page.after.as_deref();
    let parameters = [
        after.map(|after| format!("after={}", encode(after))),
        page.limit.map(|limit| format!("limit={limit}")),
    ];
    let parameters: Vec<String> = parameters.into_iter().flatten().collect();
    if parameters.is_empty() {
        String::new()
    } else {
        format!("?{}", parameters.join("&"))
    }
}

/// An object of the members that are there.
fn given<const N: usize>(members: [(&str, Option<Json>); N]) -> Json {
    let members = members.into_iter();
    Json::Object(
        members
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect::<Map<_, _>>(),
    )
}

impl Call {
    fn get(path: String, show: Show) -> Self {
        Self {
            method: "GET",
            path,
            body: None,
            show,
        }
    }

    fn post(path: String, body: Json) -> Self {
        Self {
            method: "POST",
            path,
            body: Some(body),
            show: Show::Object,
        }
    }

    /// The request that a command stands for.
    pub fn of(command: &CtlCommand) -> Self {
        use CtlCommand as C;
        let of = |partition: &str, rest: &str| {
            format!("/control/v1/partitions/{}{rest}", encode(partition))
        };
        match command {
            C::Partitions(page) => {
                Self::get(format!("/control/v1/partitions{}", paged(page)), PARTITIONS)
            }
            C::Partition { partition } => Self::get(of(partition, ""), Show::Object),
            C::Clients { partition, page } => {
                Self::get(of(partition, &format!("/clients{}", paged(page))), CLIENTS)
            }
            C::Rows {
                partition,
                table,
                page,
            } => {
                let rest = format!("/rows/{}{}", encode(table), paged(page));
                Self::get(of(partition, &rest), ROWS)
            }
            C::Migration { dry_run: false } => {
                Self::get("/control/v1/migration".to_owned(), Show::Object)
            }
            C::Migration { dry_run: true } => Self {
                show: Show::Plan,
                ..Self::post("/control/v1/migration/dry-run".to_owned(), json!({}))
            },
            C::Checkpoints { partition } => Self::get(of(partition, "/checkpoints"), CHECKPOINTS),
            C::Declare(CheckpointArgs { partition, name }) => {
                Self::post(of(partition, "/checkpoints"), json!({"name": name}))
            }
            C::Start(which) => Self::take_up(which, "start"),
            C::Pause(which) => Self::act(which, "POST", "pause", json!({})),
            C::Resume(which) => Self::take_up(which, "resume"),
            C::Activate(which) => Self::act(which, "POST", "activate", json!({})),
            C::ForceClaim(which) => Self::take_up(which, "force-claim"),
            C::Abort(which) => Self::act(which, "POST", "abort", json!({})),
            C::Workers { checkpoint, count } => {
                Self::act(checkpoint, "PUT", "workers", json!({"count": count}))
            }
            C::Pace {
                checkpoint,
                rows_per_second,
                burst_rows,
                push_p99_target_ms,
                least_share,
            } => {
                let body = given([
                    ("rows_per_second", rows_per_second.map(Json::from)),
                    ("burst_rows", burst_rows.map(Json::from)),
                    // Infinite, for none, is null in JSON.
                    ("push_p99_target_ms", push_p99_target_ms.map(Json::from)),
                    ("least_share", least_share.map(Json::from)),
                ]);
                Self::act(checkpoint, "PUT", "pace", body)
            }
            C::Fence { partition } => Self::get(of(partition, "/fence"), Show::Object),
            C::RaiseFence {
                partition,
                version,
                force,
            } => Self::post(
                of(partition, "/fence"),
                json!({"required_writer_version": version, "force": force}),
            ),
            C::RotateEpoch { partition } => Self::post(of(partition, "/rotate-epoch"), json!({})),
            C::Drain {
                partition,
                deadline_ms,
            } => Self::post(
                of(partition, "/drain"),
                given([("deadline_ms", deadline_ms.map(Json::from))]),
            ),
            C::Release { partition } => Self::post(of(partition, "/resume"), json!({})),
            C::Grants { command } => Self::grants(command),
            C::Prune {
                partition,
                min_retained,
                active_window_ms,
                age_force_ms,
                dry_run,
            } => Self::post(
                of(partition, "/prune"),
                given([
                    ("min_retained", min_retained.map(Json::from)),
                    ("active_window_ms", active_window_ms.map(Json::from)),
                    ("age_force_ms", age_force_ms.map(Json::from)),
                    ("dry_run", Some(Json::from(*dry_run))),
                ]),
            ),
            C::Clock { set_ms, advance_ms } => Self::post(
                "/control/v1/test/clock".to_owned(),
                given([
                    ("set_ms", set_ms.map(Json::from)),
                    ("advance_ms", advance_ms.map(Json::from)),
                ]),
            ),
            C::Resolver { mode } => Self::post(
                "/control/v1/test/resolver".to_owned(),
                json!({"mode": mode}),
            ),
            C::Openapi => Self::get("/control/v1/openapi.json".to_owned(), Show::Json),
        }
    }

    fn act(which: &CheckpointArgs, method: &'static str, action: &str, body: Json) -> Self {
        let (partition, name) = (encode(&which.partition), encode(&which.name));
        Self {
            method,
            ..Self::post(
                format!("/control/v1/partitions/{partition}/checkpoints/{name}/{action}"),
                body,
            )
        }
    }

    fn take_up(which: &CheckpointArgs, action: &str) -> Self {
        Self {
            show: Show::TakenUp,
            ..Self::act(which, "POST", action, json!({}))
        }
    }

    fn grants(command: &GrantsCommand) -> Self {
        use GrantsCommand as G;
        let (G::Get { partition, actor }
        | G::Put {
            partition, actor, ..
        }
        | G::Delete { partition, actor }) = command;
        let path = format!(
            "/control/v1/partitions/{}/grants/{}",
            encode(partition),
            encode(actor)
        );
        let (method, body) = match command {
            G::Get { .. } => ("GET", None),
            G::Delete { .. } => ("DELETE", None),
            G::Put { scopes, .. } => {
                // A variable that stands twice has all the values.
                let mut merged = Map::new();
                for (variable, values) in scopes {
                    let entry = merged.entry(variable.clone()).or_insert_with(|| json!([]));
                    if let Json::Array(list) = entry {
                        list.extend(values.iter().cloned().map(Json::from));
                    }
                }
                ("PUT", Some(json!({"scopes": merged})))
            }
        };
        Self {
            method,
            path,
            body,
            show: Show::Object,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::control::documented_routes;
    use clap::Parser;

    fn call(line: &str) -> Call {
        let words = ["tidegate", "ctl"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(words).unwrap().command {
            Command::Ctl(arguments) => Call::of(&arguments.command),
            other => panic!("{other:?}"),
        }
    }

    /// A command line for every message of the endpoint.
    const EVERY_MESSAGE: &[&str] = &[
        "openapi",
        "partitions",
        "partition p",
        "clients p",
        "rows p todos",
        "migration",
        "migration --dry-run",
        "checkpoints p",
        "declare p n",
        "start p n",
        "pause p n",
        "resume p n",
        "activate p n",
        "force-claim p n",
        "abort p n",
        "workers p n 4",
        "pace p n --least-share 1",
        "fence p",
        "raise-fence p 3",
        "rotate-epoch p",
        "drain p",
        "release p",
        "grants get p ada",
        "grants put p ada --scope list_id=a",
        "grants delete p ada",
        "prune p",
        "clock --set-ms 1",
        "resolver outage",
    ];

    #[test]
    fn there_is_a_command_for_every_route() {
        let mut asked: Vec<(String, String)> = EVERY_MESSAGE
            .iter()
            .map(|line| {
                let call = call(line);
                (call.method.to_owned(), call.path)
            })
            .collect();
        let mut routes: Vec<(String, String)> = documented_routes()
            .into_iter()
            .map(|(method, path)| {
                let path = path
                    .replace("{p}", "p")
                    .replace("{actor}", "ada")
                    .replace("{table}", "todos")
                    .replace("{name}", "n");
                (method, path)
            })
            .collect();
        asked.sort();
        routes.sort();
        assert_eq!(asked, routes);
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(call("partition a/b").path, "/control/v1/partitions/a%2Fb");
        assert_eq!(call("partition ..").path, "/control/v1/partitions/%2E%2E");
        assert_eq!(
            call("rows p t --after x&y --limit 3").path,
            "/control/v1/partitions/p/rows/t?after=x%26y&limit=3"
        );
    }

    #[test]
    fn bodies_hold_what_was_given() {
        assert_eq!(call("drain p").body, Some(json!({})));
        assert_eq!(
            call("prune p --min-retained 5 --dry-run").body,
            Some(json!({"min_retained": 5, "dry_run": true}))
        );
        assert_eq!(
            call("grants put p ada --scope a=1,2 --scope b=* --scope a=3").body,
            Some(json!({"scopes": {"a": ["1", "2", "3"], "b": ["*"]}}))
        );
        assert_eq!(call("workers p n 4").body, Some(json!({"count": 4})));
        assert_eq!(
            call("pace p n --push-p99-target-ms none").body,
            Some(json!({"push_p99_target_ms": null}))
        );
        assert_eq!(
            call("pace p n --push-p99-target-ms 5 --burst-rows 7").body,
            Some(json!({"burst_rows": 7.0, "push_p99_target_ms": 5.0}))
        );
        assert_eq!(
            call("clock --advance-ms 5").body,
            Some(json!({"advance_ms": 5}))
        );
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_asked() {
        for line in [
            "clock",
            "pace p n",
            "pace p n --push-p99-target-ms soon",
            "clock --set-ms 1 --advance-ms 1",
            "resolver sometimes",
            "grants put p ada",
            "grants put p ada --scope a",
            "grants put p ada --scope =1",
            "raise-fence p x",
        ] {
            let words = ["tidegate", "ctl"].into_iter().chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }
}
