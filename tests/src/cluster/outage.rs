//! The time until packets follow a change after an outage of the API server, compared with the same change without an
//! outage.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Published, askers, slices_of, until_answered_by};
use crate::campaign;
use crate::control_plane::ControlPlane;
use crate::rig::Rig;
use crate::topology::Pod;

/// The time by which a change may be later than usual after the end of an outage: one failed attempt and one pause.
const LATE: Duration = Duration::from_secs(5);
/// The factor for the usual time of a change, which API server, machine and questions take after an outage as well.
const USUAL: u32 = 2;

/// An outage that has ended.
#[derive(Debug)]
pub struct Outage<'a> {
    /// The name of the outage in messages.
    pub name: &'a str,
    /// The time of its end.
    pub ended: Instant,
    pub control_plane: &'a ControlPlane,
    pub rig: &'a Rig,
}

impl Outage<'_> {
    /// Waits until packets follow a change of the Service to the first pod, and fails if that is late. Then changes the
    /// Service to the second pod, to measure the usual time.
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

/// Fails if a change after an outage took too long, compared with `usual`, its time without an outage.
pub fn is_soon(outage: &str, took: Duration, usual: Duration) -> Result<()> {
    let name = format!("change after {outage}, {:.1} s without an outage", usual.as_secs_f64());
    campaign::figure(&name, format!("{:.1}", took.as_secs_f64()), "s");
    ensure!(took < LATE + USUAL * usual, "after {outage}: {took:?}, {usual:?} without an outage");
    Ok(())
}
