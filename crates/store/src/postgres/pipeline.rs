//! Statements sent together: one network round trip.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::BoxFuture;
use tokio_postgres::Error;

/// Runs all futures together, each polled in the order of the list: the driver
/// sends a statement when its future is first polled.
///
/// A statement that cannot even be sent (the connection is gone, a value cannot
/// be encoded) ends the list: none after it is sent, and there is no outcome for
/// them. Else a COMMIT at the end could make a batch durable without it.
pub(super) async fn in_order<T>(
    mut futures: Vec<BoxFuture<'_, Result<T, Error>>>,
) -> Vec<Result<T, Error>> {
    let mut outcomes: Vec<Option<Result<T, Error>>> = Vec::with_capacity(futures.len());
    let mut sent = false;
    poll_fn(|context| {
        if !sent {
            sent = true;
            for future in &mut futures {
                let outcome = match future.as_mut().poll(context) {
                    Poll::Ready(done) => Some(done),
                    Poll::Pending => None,
                };
                let unsendable = matches!(outcome, Some(Err(_)));
                outcomes.push(outcome);
                if unsendable {
                    break;
                }
            }
        } else {
            for (future, outcome) in futures.iter_mut().zip(&mut outcomes) {
                if outcome.is_none()
                    && let Poll::Ready(done) = future.as_mut().poll(context)
                {
                    *outcome = Some(done);
                }
            }
        }
        if outcomes.iter().all(Option::is_some) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}
