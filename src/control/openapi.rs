//! The OpenAPI document of the endpoint.

use actix_web::web::{Data, Json};
use serde::Serialize;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, Ref, ResponseBuilder, SecurityRequirement};
use utoipa::{Modify, OpenApi, ToSchema};

use super::{
    checkpoints, clients, draining, fences, grants, maintenance, migration, partitions, rows,
    test_hooks, workers,
};

/// An error, in the shape of the wire's (§10.1).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "describes what errors::ControlError writes")]
pub(crate) struct ErrorBody {
    /// `control.*`, or a code of the sync protocol.
    code: String,
    /// What kind of failure it is.
    category: String,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// What to do about it.
    recommended_action: String,
    /// For people.
    message: String,
    /// What varies.
    #[schema(value_type = Option<Object>)]
    details: Option<serde_json::Value>,
}

/// What holds for every route: the token opens it, and it fails in one shape.
struct Shared;

impl Modify for Shared {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        if let Some(components) = &mut document.components {
            components.add_security_scheme(
                "token",
                SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
            );
        }
        for item in document.paths.paths.values_mut() {
            let operations = [
                &mut item.get,
                &mut item.put,
                &mut item.post,
                &mut item.delete,
            ];
            for operation in operations.into_iter().flatten() {
                let failure = ResponseBuilder::new()
                    .description("Refused")
                    .content(
                        "application/json",
                        Content::new(Some(Ref::from_schema_name("ErrorBody"))),
                    )
                    .build();
                operation
                    .responses
                    .responses
                    .insert("default".to_owned(), failure.into());
                operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>(
                    "token",
                    [],
                )]);
            }
        }
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate control endpoint",
        description = "Operates a running Tidegate server. Times are epoch milliseconds.",
    ),
    paths(
        document,
        partitions::list_partitions,
        partitions::read_partition,
        clients::list_clients,
        draining::drain_partition,
        draining::resume_partition,
        fences::read_fence,
        fences::raise_fence,
        migration::read_migration,
        migration::plan_migration,
        checkpoints::list_checkpoints,
        checkpoints::declare_checkpoint,
        checkpoints::start_checkpoint,
        checkpoints::pause_checkpoint,
        checkpoints::resume_checkpoint,
        checkpoints::activate_checkpoint,
        checkpoints::force_claim_checkpoint,
        checkpoints::abort_checkpoint,
        workers::set_workers,
        workers::set_pace,
        maintenance::rotate_epoch,
        maintenance::prune_partition,
        grants::read_grant,
        grants::put_grant,
        grants::delete_grant,
        rows::read_rows,
    ),
    components(schemas(ErrorBody)),
    modifiers(&Shared)
)]
struct Routes;

#[derive(OpenApi)]
#[openapi(
    paths(test_hooks::turn_clock, test_hooks::switch_resolver),
    components(schemas(ErrorBody)),
    modifiers(&Shared)
)]
struct TestRoutes;

/// The document, made once.
#[derive(Clone)]
pub(crate) struct Document(pub utoipa::openapi::OpenApi);

impl Document {
    /// Of the routes that are registered.
    pub fn of(test_hooks: bool) -> Self {
        let mut document = Routes::openapi();
        if test_hooks {
            document.merge(TestRoutes::openapi());
        }
        Self(document)
    }
}

/// This document
#[utoipa::path(get, path = "/control/v1/openapi.json", responses((status = 200, body = Object)))]
pub(crate) async fn document(document: Data<Document>) -> Json<utoipa::openapi::OpenApi> {
    Json(document.0.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::routes;
    use std::collections::BTreeSet;

    fn documented(test_hooks: bool) -> BTreeSet<(String, String)> {
        let document = serde_json::to_value(Document::of(test_hooks).0).unwrap();
        let mut found = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                found.insert((path.clone(), method.to_uppercase()));
                assert!(operation["responses"]["default"].is_object());
                assert!(operation["security"].is_array());
                assert!(operation["summary"].is_string(), "{path}");
            }
        }
        found
    }

    #[test]
    fn every_route_is_documented_and_every_documented_route_exists() {
        for test_hooks in [false, true] {
            let registered: BTreeSet<(String, String)> = routes::all(test_hooks)
                .into_iter()
                .flat_map(|resource| {
                    let path = resource.path.to_owned();
                    resource
                        .methods
                        .into_iter()
                        .map(move |(method, _)| (path.clone(), method.to_string()))
                })
                .collect();
            assert_eq!(registered, documented(test_hooks));
        }
    }

    #[test]
    fn operations_have_names_of_their_own_and_schemas_resolve() {
        let document = serde_json::to_value(Document::of(true).0).unwrap();
        let mut names = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()));
            }
        }
        let text = document.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(
                document["components"]["schemas"][name].is_object(),
                "{name}"
            );
        }
    }

    #[test]
    fn the_manual_names_every_route() {
        let manual = include_str!("../../docs/control.md");
        for (path, method) in documented(true) {
            let path = path.strip_prefix("/control/v1").unwrap();
            let line = format!("`{method} {path}`");
            assert!(manual.contains(&line), "docs/control.md lacks {line}");
        }
    }
}
