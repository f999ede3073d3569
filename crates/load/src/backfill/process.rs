//! What a process has used so far, where the system tells.

/// Kernel time units per second; fixed for programs on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of a process and all its threads, seconds.
pub(super) fn cpu_seconds(pid: u32) -> Option<f64> {
    cpu_of(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may hold anything; user and system time are the 12th and
/// 13th field behind it.
fn cpu_of(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added_whatever_the_name_is() {
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1";
        assert_eq!(cpu_of(stat), Some(2.0));
        assert_eq!(cpu_of("42 (a) S 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_some() {
        assert!(cpu_seconds(std::process::id()).is_some());
    }
}
