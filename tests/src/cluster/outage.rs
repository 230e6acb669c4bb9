//! The time until packets follow a change after an outage of the API server, compared with the same change without an
//! outage.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Published, askers, slices_of, until_answered_by};
use crate::campaign;
use crate::control_plane::ControlPlane;
use crate::rig::Rig;
use crate::topology::Pod;

/// How late after the end of an outage a change may be seen: an attempt that was made too early, and one pause.
const LATE: Duration = Duration::from_secs(5);
/// How often the time of a change without an outage is added: API server, machine and questions take it as well.
const USUAL: u32 = 2;

/// An outage that is over.
#[derive(Debug)]
pub struct Outage<'a> {
    /// The words for it in messages.
    pub name: &'a str,
    /// The moment of its end.
    pub ended: Instant,
    pub control_plane: &'a ControlPlane,
    pub rig: &'a Rig,
}

impl Outage<'_> {
    /// Waits until packets follow the change of a Service to the first pod, and fails if that was late; changes it to
    /// the second one to know what is usual.
    pub fn change_is_seen_soon(&self, service: &Published, [now, next]: [&Pod; 2]) -> Result<()> {
        self.until_seen(service, now)?;
        let took = self.ended.elapsed();
        let again = Instant::now();
        self.control_plane.apply(&slices_of(service, &[next]))?;
        self.until_seen(service, next)?;
        is_soon(self.name, took, again.elapsed())
    }

    fn until_seen(&self, service: &Published, pod: &Pod) -> Result<()> {
        let askers = askers(self.rig, service)?;
        askers.into_iter().try_for_each(|(from, ask)| until_answered_by(from, ask, &[pod.name()]))
    }
}

/// Fails if a change that took `usual` without an outage was late after one.
pub fn is_soon(outage: &str, took: Duration, usual: Duration) -> Result<()> {
    let name = format!("change after {outage}, {:.1} s without an outage", usual.as_secs_f64());
    campaign::figure(&name, format!("{:.1}", took.as_secs_f64()), "s");
    ensure!(took < LATE + USUAL * usual, "after {outage}: {took:?}, and {usual:?} without it");
    Ok(())
}
