//! Notifies the service manager (`sd_notify(3)`), and takes resources at the start: open files, OOM score.
//!
//! Without a service manager nothing is sent. A refused resource is logged, and the agent serves without it.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::{debug, info, warn};

use crate::config::Setting;
use crate::syscall;

/// A service manager, if there is one.
#[derive(Debug)]
pub(super) struct ServiceManager {
    /// How often it wants a sign of life: half of what it allows.
    every: Option<Duration>,
    /// When it was told last; not before it was told that we are ready.
    told: Option<Instant>,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn of_environment() -> Self {
        let every = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        Self { every, told: None }
    }

    /// Everything is programmed.
    pub(super) fn ready(&mut self) {
        tell(&[NotifyState::Ready]);
        self.told = Some(Instant::now());
    }

    /// The loop turns: call it about once a second.
    pub(super) fn alive(&mut self) {
        if self.told.is_some_and(|told| self.is_due(told.elapsed())) {
            tell(&[NotifyState::Watchdog]);
            self.told = Some(Instant::now());
        }
    }

    /// The agent ends.
    pub(super) fn stopping() {
        tell(&[NotifyState::Stopping]);
    }

    /// The loop comes by once a second: whoever wants a sign more often gets one each time.
    fn is_due(&self, since: Duration) -> bool {
        self.every.is_some_and(|every| since + Duration::from_secs(1) > every)
    }
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        warn!(%error, "notifying the service manager failed");
    }
}

/// Takes a higher weight than other processes have, for this thread and all that it starts: call it before the runtime.
pub fn take_priority() {
    if let Err(error) = syscall::raise_priority() {
        debug!(%error, "priority not raised: it needs CAP_SYS_NICE");
    }
}

/// Takes as many open files as are allowed (each health-checked Service is a listener), and the place that is
/// configured among the victims of memory shortage.
pub(super) fn take_resources(oom_score_adj: &Setting<i64>) {
    match syscall::raise_open_files() {
        Ok((from, to)) if from != to => info!(from, to, "raised the limit of open files"),
        Ok(_) => {}
        Err(error) => warn!(%error, "limit of open files not raised"),
    }
    let wanted = oom_score_adj.value;
    match std::fs::write("/proc/self/oom_score_adj", wanted.to_string()) {
        Ok(()) => {}
        // Lowering it wants CAP_SYS_RESOURCE, which the agent does without: the kubelet sets it for a critical pod.
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
    fn a_sign_of_life_comes_before_it_is_late() {
        let manager = |every| ServiceManager { every, told: None };
        let seconds = Duration::from_secs;
        assert!(!manager(None).is_due(seconds(100)));
        let every = Some(seconds(15));
        assert!(!manager(every).is_due(seconds(13)));
        assert!(manager(every).is_due(seconds(15)));
        assert!(manager(Some(seconds(1))).is_due(seconds(1)), "allowed 2 s, told every second");
    }
}
