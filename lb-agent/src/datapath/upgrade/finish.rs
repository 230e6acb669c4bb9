//! The end of an upgrade: copies entries that packets wrote into the maps of an earlier run, then detaches its
//! programs.

use tracing::warn;

use super::{Previous, Replaced, handover};
use crate::datapath::Datapath;
use crate::datapath::error::Error;

impl Datapath {
    /// Copies what packets wrote since the maps were created. Call it right before programs are replaced, so that
    /// little is missing until [`Datapath::finish_upgrade`].
    pub fn carry(&self) -> Result<(), Error> {
        let maps = self.dir.join("maps");
        self.written_by_packets().try_for_each(|replaced| replaced.copy(&maps))?;
        self.previous.as_ref().map_or(Ok(()), |previous| previous.copy(&maps, false))
    }

    /// Reports whether an earlier run's programs write other maps than ours do.
    pub(in crate::datapath) fn hands_over(&self) -> bool {
        self.previous.is_some() || self.written_by_packets().next().is_some()
    }

    /// Returns the resized maps that packets write. The others were copied when they were created; their old content
    /// must not replace what was planned since.
    fn written_by_packets(&self) -> impl Iterator<Item = &Replaced> {
        self.replaced.iter().filter(|replaced| replaced.is_memory())
    }

    /// Copies the entries that packets meanwhile wrote into an earlier run's maps, then detaches its programs. Call it
    /// when every request meets our programs; after a failure, call it again.
    pub fn finish_upgrade(&mut self) -> Result<(), Error> {
        let (maps, links) = (self.dir.join("maps"), self.dir.join("links"));
        if let Some(previous) = &self.previous
            && let Err(error) = previous.end()
        {
            warn!(
                error = crate::chain(&error),
                "some programs of another layout could not be detached yet"
            );
        }
        if self.hands_over() {
            // Packets inside the detached programs may still write; the copy must come after them.
            crate::syscall::wait_for_programs();
        }
        for replaced in self.written_by_packets() {
            if let Err(error) = replaced.copy(&maps) {
                warn!(
                    map = replaced.name(),
                    %error,
                    "some entries that were written during the switch were not copied"
                );
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
        // The programs are detached first: they still translate answers with these maps.
        handover::forget(&links)?;
        self.replaced.iter().try_for_each(Replaced::forget)?;
        self.replaced.clear();
        self.previous.as_ref().map_or(Ok(()), Previous::forget)?;
        self.previous = None;
        self.programs.forget_others()
    }
}
