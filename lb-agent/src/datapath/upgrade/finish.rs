//! The end of an upgrade: entries that packets wrote into the maps of an earlier run are copied, then its programs are
//! detached.

use tracing::warn;

use super::{Previous, Replaced, handover};
use crate::datapath::Datapath;
use crate::datapath::error::Error;

impl Datapath {
    /// Carries over what packets wrote since the maps were made: right before programs are replaced, so that little
    /// is missing between that and [`Datapath::finish_upgrade`].
    pub fn carry(&self) -> Result<(), Error> {
        let maps = self.dir.join("maps");
        self.replaced.iter().try_for_each(|replaced| replaced.copy(&maps))?;
        self.previous.as_ref().map_or(Ok(()), |previous| previous.copy(&maps, false))
    }

    /// Whether ours and an earlier run's programs do not write the same maps.
    pub(in crate::datapath) fn hands_over(&self) -> bool {
        self.previous.is_some() || self.replaced.iter().any(Replaced::is_memory)
    }

    /// To be called when every question meets our programs: moves over what went into the maps of an earlier run
    /// meanwhile, then takes its programs off. After a failure it may be called again.
    pub fn finish_upgrade(&mut self) -> Result<(), Error> {
        let (maps, links) = (self.dir.join("maps"), self.dir.join("links"));
        if let Some(previous) = &self.previous
            && let Err(error) = previous.end()
        {
            warn!(
                error = crate::chain(&error),
                "some programs of another version could not be detached yet"
            );
        }
        if self.hands_over() {
            crate::syscall::wait_for_programs();
        }
        for replaced in &self.replaced {
            if let Err(error) = replaced.copy(&maps) {
                warn!(map = replaced.name(), %error, "some late entries of the previous map were not copied");
            }
        }
        if let Some(previous) = &self.previous
            && let Err(error) = previous.copy(&maps, false)
        {
            warn!(
                error = crate::chain(&error),
                "some late entries of the previous layout were not copied"
            );
        }
        // Their programs first: they answer from these maps.
        handover::forget(&links)?;
        self.replaced.iter().try_for_each(Replaced::forget)?;
        self.replaced.clear();
        self.previous.as_ref().map_or(Ok(()), Previous::forget)?;
        self.previous = None;
        self.programs.forget_others()
    }
}
