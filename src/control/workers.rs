//! How many workers carry a checkpoint out, and how fast they may write.

use actix_web::web::Path;
use serde::{Deserialize, Deserializer, Serialize};
use tidegate_actors::backfill::MAX_WORKERS;
use tidegate_engine::backfill::pacing::Pace;
use utoipa::ToSchema;

use super::checkpoints::{Action, CheckpointView, act};
use super::errors::invalid;
use super::input::Body;
use super::{Answer, ControlError, OperatorData};

/// How fast a backfill may write.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PaceView {
    /// Rows per second at most.
    rows_per_second: f64,
    /// Rows that may be written at once after an idle time.
    burst_rows: f64,
    /// Wanted 99th percentile of the latency of pushes, milliseconds; null = do not yield.
    push_p99_target_ms: Option<f64>,
    /// The share of the rate that is kept however slow pushes are, above 0 to 1.
    least_share: f64,
}

impl From<Pace> for PaceView {
    fn from(pace: Pace) -> Self {
        Self {
            rows_per_second: pace.rows_per_second,
            burst_rows: pace.burst_rows,
            push_p99_target_ms: pace.push_p99_target_ms,
            least_share: pace.least_share,
        }
    }
}

/// How many workers scan.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkersBody {
    /// 1 to 64; to have none, pause.
    count: u32,
}

/// Set how many workers scan, durably
#[utoipa::path(put, path = "/control/v1/partitions/{p}/checkpoints/{name}/workers",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = WorkersBody, responses((status = 200, body = CheckpointView)))]
pub(crate) async fn set_workers(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(body): Body<WorkersBody>,
) -> Answer<CheckpointView> {
    if !(1..=MAX_WORKERS).contains(&body.count) {
        return Err(invalid("count", "1 to 64; to have none, pause"));
    }
    act(&operator, path, Action::SetWorkers(body.count)).await
}

/// What to change of a pace; what is left out stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PaceBody {
    /// Rows per second at most, 0.1 to 10000000.
    rows_per_second: Option<f64>,
    /// Rows that may be written at once after an idle time, 1 to 10000000.
    burst_rows: Option<f64>,
    /// Wanted 99th percentile of the latency of pushes, 0.1 to 3600000 milliseconds;
    /// null = do not yield.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    push_p99_target_ms: Option<Option<f64>>,
    /// The share of the rate that is kept however slow pushes are, 0.001 to 1.
    least_share: Option<f64>,
}

/// Tells a member that is null from one that is left out.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl PaceBody {
    pub fn over(&self, pace: Pace) -> Pace {
        Pace {
            rows_per_second: self.rows_per_second.unwrap_or(pace.rows_per_second),
            burst_rows: self.burst_rows.unwrap_or(pace.burst_rows),
            push_p99_target_ms: self.push_p99_target_ms.unwrap_or(pace.push_p99_target_ms),
            least_share: self.least_share.unwrap_or(pace.least_share),
        }
    }

    fn check(&self) -> Result<(), ControlError> {
        let within = |field, value: Option<f64>, low: f64, high: f64, expected| match value {
            Some(value) if !(low..=high).contains(&value) => Err(invalid(field, expected)),
            _ => Ok(()),
        };
        within(
            "rows_per_second",
            self.rows_per_second,
            0.1,
            1e7,
            "0.1 to 10000000",
        )?;
        within("burst_rows", self.burst_rows, 1.0, 1e7, "1 to 10000000")?;
        within(
            "push_p99_target_ms",
            self.push_p99_target_ms.flatten(),
            0.1,
            3.6e6,
            "0.1 to 3600000, or null",
        )?;
        within("least_share", self.least_share, 0.001, 1.0, "0.001 to 1")
    }
}

/// Set the pace, durably and at once
#[utoipa::path(put, path = "/control/v1/partitions/{p}/checkpoints/{name}/pace",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = PaceBody, responses((status = 200, body = CheckpointView)))]
pub(crate) async fn set_pace(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(body): Body<PaceBody>,
) -> Answer<CheckpointView> {
    body.check()?;
    act(&operator, path, Action::SetPace(body)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> PaceBody {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_pace_changes_what_is_given_alone() {
        let pace = Pace::default();
        assert_eq!(body("{}").over(pace), pace);
        let slower = body(r#"{"rows_per_second": 10}"#).over(pace);
        assert_eq!(
            slower,
            Pace {
                rows_per_second: 10.0,
                ..pace
            }
        );
        let unyielding = body(r#"{"push_p99_target_ms": null}"#).over(pace);
        assert_eq!(unyielding.push_p99_target_ms, None);
    }

    #[test]
    fn a_pace_that_never_ends_is_refused() {
        body("{}").check().unwrap();
        body(r#"{"push_p99_target_ms": null, "least_share": 1}"#)
            .check()
            .unwrap();
        for bad in [
            r#"{"rows_per_second": 0}"#,
            r#"{"rows_per_second": 1e300}"#,
            r#"{"burst_rows": 0.5}"#,
            r#"{"push_p99_target_ms": -1}"#,
            r#"{"least_share": 0}"#,
            r#"{"least_share": 1.5}"#,
        ] {
            assert!(body(bad).check().is_err(), "{bad}");
        }
    }
}
