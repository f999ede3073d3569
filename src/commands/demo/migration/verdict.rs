//! The checks at the end.

use std::collections::BTreeMap;

use tidegate_client::{ClientConfig, ClientSchema, HttpTransport, SyncClient};

use super::super::DemoError;
use super::crowd::{Device, Kind, Outcome, Phase, Stage};
use super::servers::SCHEMA_TWO;
use super::truth::{Truth, differences};

/// Differences that are shown.
const SHOWN: usize = 5;
/// An old row that nobody edits is written once by its device and once by the backfill.
const COMPUTED_ONCE: i64 = 2;

/// What was checked, and how it came out.
pub(super) struct Verdict {
    lines: Vec<(bool, String)>,
}

impl Verdict {
    pub async fn reach(
        stage: &Stage,
        devices: &[Device],
        url: &str,
        partition: &str,
        killed_at: &BTreeMap<String, u64>,
        resumed_at: &BTreeMap<String, u64>,
    ) -> Result<Self, DemoError> {
        let mut verdict = Self { lines: Vec::new() };
        verdict.judge_rows(devices, url, partition).await?;
        let tallies = stage.tallies();
        let uncomputed = &tallies.uncomputed;
        verdict.add(
            uncomputed.is_empty(),
            format!(
                "no pull at schema 2 showed a row that was not computed yet ({} pulls, each row of each looked at){}",
                tallies.pulls_checked,
                listed(uncomputed)
            ),
        );
        let late = tallies.served(Kind::OldPush, Phase::Computing)
            + tallies.served(Kind::OldPush, Phase::After);
        let tries = late
            + tallies.count(Kind::OldPush, Phase::Computing, Outcome::Refused)
            + tallies.count(Kind::OldPush, Phase::After, Outcome::Refused);
        verdict.add(
            late == 0 && tries > 0,
            format!(
                "{} of {tries} pushes of the old writer were refused after the declaration",
                tries - late
            ),
        );
        let refused = tallies.count(Kind::Push, Phase::Computing, Outcome::Refused)
            + tallies.count(Kind::Push, Phase::After, Outcome::Refused)
            + tallies.count(Kind::PullTodos, Phase::After, Outcome::Refused)
            + tallies.count(Kind::PullLists, Phase::Computing, Outcome::Refused)
            + tallies.count(Kind::PullLists, Phase::After, Outcome::Refused);
        verdict.add(
            refused <= tallies.refused_at_the_old_server,
            "pushes and pulls of tables that are not computed were served all the time".to_owned(),
        );
        let resumed = killed_at.iter().all(|(name, rows)| {
            *rows > 0 && resumed_at.get(name).is_some_and(|resumed| resumed >= rows)
        });
        verdict.add(
            resumed,
            format!(
                "after kill -9 each backfill went on where it stood ({})",
                killed_at
                    .iter()
                    .map(|(name, rows)| format!(
                        "{name}: {rows} rows seen before, {} after",
                        resumed_at.get(name).copied().unwrap_or_default()
                    ))
                    .collect::<Vec<_>>()
                    .join("; ")
            ),
        );
        verdict.add(
            tallies.unexpected.is_empty(),
            format!(
                "every refusal was sync.schema_not_ready{}",
                listed(&tallies.unexpected)
            ),
        );
        Ok(verdict)
    }

    /// Compares every row that a new device fetches with what it must be.
    async fn judge_rows(
        &mut self,
        devices: &[Device],
        url: &str,
        partition: &str,
    ) -> Result<(), DemoError> {
        let truth: Truth = devices
            .iter()
            .flat_map(|device| device.truth.clone())
            .collect();
        let lists: Vec<String> = devices.iter().map(|device| device.list.clone()).collect();
        let mut fresh = SyncClient::new(
            ClientConfig::new("comparer"),
            ClientSchema::from_ir_json(SCHEMA_TWO)?,
            HttpTransport::new(url, "comparer", Some(partition))?,
        );
        for table in ["todos", "cards"] {
            fresh.subscribe(table, table, [("list_id", lists.clone())])?;
        }
        fresh.sync().await?;
        let replica = fresh.replica();
        let found = differences(replica, &truth);
        self.add(
            found.is_empty() && !truth.is_empty(),
            format!(
                "final check: {} todos with title_key and {} cards, every row equal to a direct computation{}",
                replica.len("todos"),
                replica.len("cards"),
                listed(&found)
            ),
        );
        let untouched = || {
            truth
                .iter()
                .filter(|(_, todo)| todo.writes == 1 && todo.old)
        };
        let twice: Vec<String> = untouched()
            .filter(|(id, _)| replica.version("todos", id) != Some(COMPUTED_ONCE))
            .map(|(id, _)| format!("todo {id} is at version {:?}", replica.version("todos", id)))
            .collect();
        self.add(
            twice.is_empty(),
            format!(
                "{} old rows that nobody edited were written once more, by the backfill{}",
                untouched().count(),
                listed(&twice)
            ),
        );
        Ok(())
    }

    fn add(&mut self, good: bool, text: String) {
        self.lines.push((good, text));
    }

    pub fn is_good(&self) -> bool {
        self.lines.iter().all(|(good, _)| *good)
    }

    pub fn text(&self) -> String {
        let line = |(good, text): &(bool, String)| {
            format!("{}  {text}", if *good { "ok    " } else { "FAILED" })
        };
        self.lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// The first few, on lines of their own.
fn listed(found: &[String]) -> String {
    let mut text: String = found
        .iter()
        .take(SHOWN)
        .map(|one| format!("\n          {one}"))
        .collect();
    if found.len() > SHOWN {
        text.push_str(&format!("\n          and {} more", found.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_line_makes_a_bad_verdict() {
        let mut verdict = Verdict { lines: Vec::new() };
        verdict.add(true, "a".to_owned());
        assert!(verdict.is_good());
        verdict.add(false, format!("b{}", listed(&vec!["x".to_owned(); 7])));
        assert!(!verdict.is_good());
        let text = verdict.text();
        assert!(
            text.contains("FAILED  b\n") && text.ends_with("and 2 more"),
            "{text}"
        );
    }
}
