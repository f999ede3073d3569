//! The bootstrap resume token (§4.7): opaque to clients, bytes stable for us.

use serde_json::Value as Json;

use crate::ids::CommitSeq;

/// Where an unfinished bootstrap goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// `asOfCommitSeq`
    pub pin: CommitSeq,
    /// `rowCursor`: exclusive row id to go on after; `None` = the table's start.
    pub after_row_id: Option<String>,
}

impl BootstrapToken {
    /// Reads a token of a subscription to `table`. `None` for anything unusable,
    /// which is never an error: the bootstrap starts over.
    ///
    /// A subscription has one table, so `tables` must be exactly that one and
    /// `tableIndex` its position.
    pub fn parse(json: &str, table: &str) -> Option<Self> {
        let json: Json = serde_json::from_str(json).ok()?;
        let pin = json
            .get("asOfCommitSeq")?
            .as_i64()
            .filter(|pin| *pin >= 0)?;
        let tables = json.get("tables")?.as_array()?;
        if tables.len() != 1 || tables[0].as_str() != Some(table) {
            return None;
        }
        if json.get("tableIndex")?.as_i64() != Some(0) {
            return None;
        }
        let after_row_id = match json.get("rowCursor")? {
            Json::Null => None,
            Json::String(row_id) => Some(row_id.clone()),
            _ => return None,
        };
        Some(Self {
            pin: CommitSeq(pin),
            after_row_id,
        })
    }

    /// Writes the token, keys always in the specification's order.
    pub fn format(&self, table: &str) -> String {
        let row_cursor = self.after_row_id.as_deref().map_or(Json::Null, Json::from);
        format!(
            "{{\"asOfCommitSeq\":{},\"tables\":[{}],\"tableIndex\":0,\"rowCursor\":{row_cursor}}}",
            self.pin,
            Json::from(table),
        )
    }
}
