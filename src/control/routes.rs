//! The routes: one list that is registered and that the OpenAPI document is held to.

use actix_web::http::Method;
use actix_web::{Route, web};

use super::{
    checkpoints, clients, draining, errors, fences, grants, maintenance, migration, openapi,
    partitions, rows, test_hooks, workers,
};

/// Where the document of all routes is.
pub(crate) const DOCUMENT: &str = "/control/v1/openapi.json";

/// The methods of one path.
pub(crate) struct Resource {
    pub path: &'static str,
    pub methods: Vec<(Method, Route)>,
}

fn at<const N: usize>(path: &'static str, methods: [(Method, Route); N]) -> Resource {
    Resource {
        path,
        methods: methods.into(),
    }
}

macro_rules! method {
    ($method:ident, $http:ident, $handler:path) => {
        (Method::$http, web::$method().to($handler))
    };
}

/// Every route; those for tests only where `test_hooks` are.
pub(crate) fn all(test_hooks: bool) -> Vec<Resource> {
    let mut routes = vec![
        at(DOCUMENT, [method!(get, GET, openapi::document)]),
        at(
            "/control/v1/migration",
            [method!(get, GET, migration::read_migration)],
        ),
        at(
            "/control/v1/migration/dry-run",
            [method!(post, POST, migration::plan_migration)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints",
            [
                method!(get, GET, checkpoints::list_checkpoints),
                method!(post, POST, checkpoints::declare_checkpoint),
            ],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/start",
            [method!(post, POST, checkpoints::start_checkpoint)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/pause",
            [method!(post, POST, checkpoints::pause_checkpoint)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/resume",
            [method!(post, POST, checkpoints::resume_checkpoint)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/activate",
            [method!(post, POST, checkpoints::activate_checkpoint)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/force-claim",
            [method!(post, POST, checkpoints::force_claim_checkpoint)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/abort",
            [method!(post, POST, checkpoints::abort_checkpoint)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/workers",
            [method!(put, PUT, workers::set_workers)],
        ),
        at(
            "/control/v1/partitions/{p}/checkpoints/{name}/pace",
            [method!(put, PUT, workers::set_pace)],
        ),
        at(
            "/control/v1/partitions",
            [method!(get, GET, partitions::list_partitions)],
        ),
        at(
            "/control/v1/partitions/{p}",
            [method!(get, GET, partitions::read_partition)],
        ),
        at(
            "/control/v1/partitions/{p}/clients",
            [method!(get, GET, clients::list_clients)],
        ),
        at(
            "/control/v1/partitions/{p}/drain",
            [method!(post, POST, draining::drain_partition)],
        ),
        at(
            "/control/v1/partitions/{p}/resume",
            [method!(post, POST, draining::resume_partition)],
        ),
        at(
            "/control/v1/partitions/{p}/fence",
            [
                method!(get, GET, fences::read_fence),
                method!(post, POST, fences::raise_fence),
            ],
        ),
        at(
            "/control/v1/partitions/{p}/rotate-epoch",
            [method!(post, POST, maintenance::rotate_epoch)],
        ),
        at(
            "/control/v1/partitions/{p}/prune",
            [method!(post, POST, maintenance::prune_partition)],
        ),
        at(
            "/control/v1/partitions/{p}/grants/{actor}",
            [
                method!(get, GET, grants::read_grant),
                method!(put, PUT, grants::put_grant),
                method!(delete, DELETE, grants::delete_grant),
            ],
        ),
        at(
            "/control/v1/partitions/{p}/rows/{table}",
            [method!(get, GET, rows::read_rows)],
        ),
    ];
    if test_hooks {
        routes.push(at(
            "/control/v1/test/clock",
            [method!(post, POST, test_hooks::turn_clock)],
        ));
        routes.push(at(
            "/control/v1/test/resolver",
            [method!(post, POST, test_hooks::switch_resolver)],
        ));
    }
    routes
}

/// Registers the routes.
pub(crate) fn register(config: &mut web::ServiceConfig, test_hooks: bool) {
    for Resource { path, methods } in all(test_hooks) {
        let resource = web::resource(path).default_service(web::to(errors::wrong_method));
        let resource = methods
            .into_iter()
            .fold(resource, |resource, (_, route)| resource.route(route));
        config.service(resource);
    }
    // A path that is no text names nothing.
    config.app_data(web::PathConfig::default().error_handler(|_, _| errors::no_route().into()));
    config.default_service(web::to(errors::unknown_route));
}
