//! Who asks, for the manager's log.

/// As `user@host`; what is not known is left out.
pub(super) fn asked_by() -> String {
    let user = std::env::var("USER").unwrap_or_default();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => user,
        host => format!("{user}@{host}"),
    }
}
