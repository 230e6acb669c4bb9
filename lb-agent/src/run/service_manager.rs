//! Notifies the service manager (`sd_notify(3)`), and takes resources at the start: open files, OOM score, priority.
//!
//! Without a service manager nothing is sent. If a resource is refused, the agent logs that and serves without it.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::{debug, info, warn};

use super::error::End;
use crate::config::Setting;
use crate::syscall;

/// Half of the shortest watchdog timeout during a restart in the same process: the agent sends no `WATCHDOG=1` before
/// it is ready.
const STARTS: Duration = Duration::from_mins(5);

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct ServiceManager {
    /// Interval between watchdog notifications: half of the configured timeout (`WatchdogSec=`).
    every: Option<Duration>,
    /// Time of the last notification; `None` before readiness was reported.
    last: Option<Instant>,
}

impl ServiceManager {
    /// Reads the service manager's wishes from the environment.
    pub(super) fn of_environment() -> Self {
        let every = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        Self { every, last: None }
    }

    /// Notifies it that everything is programmed.
    pub(super) fn ready(&mut self) {
        let mut all = vec![NotifyState::Ready];
        // A restart in this process has set a longer timeout (`ends`); from now on the configured one counts again.
        all.extend(self.every.map(|every| watchdog(every * 2)));
        notify(&all);
        self.last = Some(Instant::now());
    }

    /// Notifies it that the loop turns, if that is due. Call it about once a second.
    pub(super) fn alive(&mut self) {
        if self.last.is_some_and(|last| self.is_due(last.elapsed())) {
            notify(&[NotifyState::Watchdog]);
            self.last = Some(Instant::now());
        }
    }

    /// Notifies it that the agent ends, or that it starts again in this process.
    ///
    /// After `STOPPING=1` the service manager would kill the process that goes on.
    pub(super) fn ends(&self, end: End) {
        let mut all = Vec::new();
        match end {
            End::Asked | End::Lost(_) => all.push(NotifyState::Stopping),
            End::Changed => {
                all.push(NotifyState::Reloading);
                // With a service of type `notify-reload` the time must come with it (`sd_notify(3)`).
                all.extend(NotifyState::monotonic_usec_now());
                all.extend(self.every.map(|every| watchdog(every.max(STARTS) * 2)));
            }
        }
        notify(&all);
    }

    /// Reports whether a notification is due before the next call, a second from now.
    fn is_due(&self, since: Duration) -> bool {
        self.every.is_some_and(|every| since + Duration::from_secs(1) > every)
    }
}

/// Returns the notification that sets the watchdog timeout.
fn watchdog(timeout: Duration) -> NotifyState<'static> {
    NotifyState::WatchdogUsec(u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX))
}

fn notify(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        warn!(%error, "notifying the service manager failed");
    }
}

/// Raises the priority of this thread and of all that it starts. Call it before the runtime starts.
pub fn take_priority() {
    if let Err(error) = syscall::raise_priority() {
        debug!(%error, "priority not raised: it needs CAP_SYS_NICE");
    }
}

/// Raises the limit of open files (each Service with a health check is a listener), and sets the configured OOM score.
pub(super) fn take_resources(oom_score_adj: &Setting<i64>) {
    match syscall::raise_open_files() {
        Ok((from, to)) if from != to => info!(from, to, "raised the limit of open files"),
        Ok(_) => {}
        Err(error) => warn!(%error, "limit of open files could not be raised"),
    }
    let wanted = oom_score_adj.value;
    match std::fs::write("/proc/self/oom_score_adj", wanted.to_string()) {
        Ok(()) => {}
        // Lowering the score needs CAP_SYS_RESOURCE, which the agent can do without: the kubelet sets it for a critical
        // pod.
        Err(error) if oom_score_adj.is_set() => {
            warn!(%error, wanted, "oomScoreAdj not applied: it needs CAP_SYS_RESOURCE");
        }
        Err(error) => debug!(%error, wanted, "oom_score_adj not changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_notification_comes_before_the_timeout() {
        let manager = |every| ServiceManager { every, last: None };
        let seconds = Duration::from_secs;
        assert!(!manager(None).is_due(seconds(100)));
        let every = Some(seconds(15));
        assert!(!manager(every).is_due(seconds(13)));
        assert!(manager(every).is_due(seconds(15)));
        assert!(manager(Some(seconds(1))).is_due(seconds(1)), "allowed 2 s, notified every second");
    }
}
