//! The HTTP surface: routes, bodies, negotiation and error answers.

pub mod body;
pub mod compression;
pub mod errors;
pub mod health;
pub mod segments;
pub mod sync;

#[cfg(test)]
mod tests;

use actix_web::web;

/// Every route of the service.
pub fn routes(config: &mut web::ServiceConfig) {
    let route = |path: &str| web::resource(path).default_service(web::to(errors::wrong_method));
    config
        .service(route("/sync").route(web::post().to(sync::post)))
        .service(
            route("/segments/{id}")
                .route(web::get().to(segments::get))
                .route(web::head().to(segments::get)),
        )
        .service(route("/healthz").route(web::get().to(health::healthz)))
        .service(route("/readyz").route(web::get().to(health::readyz)))
        .default_service(web::to(errors::unknown_route));
}
