//! Who asks for a change and why, and whom.

use super::manager::Managers;
use super::output::Format;

/// Of every command that changes something.
#[derive(Debug, clap::Args)]
pub(super) struct Asking {
    /// Why, for the manager's log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) managers: Managers,
    #[command(flatten)]
    pub(super) format: Format,
}

/// As `user@host`, by the number of the user where its name is not known, as in a container or a unit of systemd.
pub(super) fn asked_by() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(user_by_number);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => user,
        host => format!("{user}@{host}"),
    }
}

fn user_by_number() -> String {
    format!("uid-{}", rustix::process::getuid().as_raw())
}
