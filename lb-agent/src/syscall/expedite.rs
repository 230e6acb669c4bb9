//! Expedited RCU grace periods: the kernel waits for a grace period under RTNL whenever a tcx link is made or removed.
//!
//! A normal grace period takes 8 to 60 ms, an expedited one some 30 us (ADR 0030). The switch is for the whole machine,
//! so it is on only during the system call that waits.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The switch of `synchronize_rcu()` (`rcu_expedited`, `kernel/rcu/update.c`). Kernels for one CPU have none.
const SWITCH: &str = "/sys/kernel/rcu_expedited";

/// Exists while an agent has the switch on, so that the next agent turns it off if that one was killed.
const MARKER: &str = "/run/lb-agent/rcu_expedited";

/// The threads of this process that use the switch now. They do not wait for each other: one that attaches a new pod
/// would wait while another one waits for RTNL.
static USERS: Mutex<Users> = Mutex::new(Users { count: 0, is_ours: false });

/// The number of users of the switch, and whether the last one turns it off.
struct Users {
    count: usize,
    is_ours: bool,
}

impl Users {
    /// The first user turns the switch on.
    fn enter(&mut self, switch: &Path, marker: &Path) {
        if self.count == 0 {
            self.is_ours = switch_on(switch, marker);
        }
        self.count += 1;
    }

    /// The last user turns the switch off.
    fn leave(&mut self, switch: &Path, marker: &Path) {
        self.count -= 1;
        if self.count == 0 && self.is_ours {
            switch_off(switch, marker);
        }
    }
}

fn users() -> MutexGuard<'static, Users> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Grace periods are expedited while this value exists.
pub(super) struct Expedited(());

/// Turns expedited grace periods on. If the switch does not exist or is read-only (as `/sys` in a container), grace
/// periods keep their length.
pub(super) fn expedite() -> Expedited {
    users().enter(Path::new(SWITCH), Path::new(MARKER));
    Expedited(())
}

/// Turns the switch on. Returns whether to turn it off afterwards: false if an administrator has turned it on.
fn switch_on(switch: &Path, marker: &Path) -> bool {
    let Ok(value) = fs::read_to_string(switch) else { return false };
    if value.trim() != "0" {
        // The marker shows that an agent that was killed, not an administrator, has turned it on.
        return marker.exists();
    }
    // The marker is written first: an agent that is killed in between leaves a marker without a switch, which does no
    // harm.
    mark(marker) && fs::write(switch, "1").is_ok()
}

fn mark(marker: &Path) -> bool {
    let is_written = || fs::write(marker, "").is_ok();
    let made = |directory| fs::create_dir_all(directory).is_ok();
    is_written() || marker.parent().is_some_and(made) && is_written()
}

fn switch_off(switch: &Path, marker: &Path) {
    if fs::write(switch, "0").is_ok() && fs::remove_file(marker).is_err() {
        // Another agent has turned it off as well.
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        users().leave(Path::new(SWITCH), Path::new(MARKER));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_agents_switch_is_switched_off() {
        let directory = tempfile::tempdir().unwrap();
        let (switch, marker) =
            (directory.path().join("switch"), directory.path().join("run/marker"));
        assert!(!switch_on(&switch, &marker), "a kernel without it");
        fs::write(&switch, "1\n").unwrap();
        assert!(!switch_on(&switch, &marker), "an administrator's");
        fs::write(&switch, "0\n").unwrap();
        assert!(switch_on(&switch, &marker));
        assert_eq!(fs::read_to_string(&switch).unwrap(), "1");
        assert!(switch_on(&switch, &marker), "that of an agent that was killed");
        switch_off(&switch, &marker);
        assert_eq!(fs::read_to_string(&switch).unwrap(), "0");
        assert!(!marker.exists());
    }

    #[test]
    fn switch_stays_on_for_the_last_user() {
        let directory = tempfile::tempdir().unwrap();
        let (switch, marker) = (directory.path().join("switch"), directory.path().join("marker"));
        let mut users = Users { count: 0, is_ours: false };
        for before in ["0\n", "1\n"] {
            fs::write(&switch, before).unwrap();
            let mut value = |step: fn(&mut Users, &Path, &Path)| {
                step(&mut users, &switch, &marker);
                fs::read_to_string(&switch).unwrap().trim().to_owned()
            };
            let steps = [Users::enter, Users::enter, Users::leave, Users::leave].map(&mut value);
            assert_eq!(steps, ["1", "1", "1", before.trim()]);
        }
    }
}
