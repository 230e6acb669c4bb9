//! Resources that a [`Peer`] holds open: a socket, a load, many sockets. Dropping any of them closes it.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::load::Tally;
use super::super::rounds::Ledger;
use super::super::session::{Order, Report};
use super::super::{Answer, Ask, Failure};
use super::Peer;
use crate::wait::wait_until;

/// How long a load may take to have them: each question is answered or lost before.
const PATIENCE: Duration = Duration::from_mins(1);
/// Answers that make a load a witness.
const ENOUGH: u64 = 21;
/// A socket that stays open between questions; dropping it closes it.
#[derive(Debug)]
pub struct Kept<'a> {
    pub(super) peer: &'a Peer,
    pub(super) id: u64,
    pub(super) ask: Ask,
}

impl Kept<'_> {
    /// Asks again.
    pub fn ask(&self) -> Result<Answer, Failure> {
        self.ask_as(self.ask)
    }

    /// Asks something else; an unconnected UDP socket may so ask another server.
    pub fn ask_as(&self, ask: Ask) -> Result<Answer, Failure> {
        self.peer.asked(&Order::AskOn { id: self.id, ask })
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        drop(self.peer.done(&Order::Close { id: self.id }));
    }
}

/// Questions in the background.
#[derive(Debug)]
pub struct Load<'a> {
    pub(super) peer: &'a Peer,
    pub(super) id: u64,
}

impl Load<'_> {
    /// Returns how the questions went until now.
    pub fn so_far(&self) -> Result<Tally, Failure> {
        self.peer.tallied(&Order::LoadSoFar { id: self.id })
    }

    /// Ends it once it has [`ENOUGH`] answers, one of them later than now: what it watched may have been quick.
    ///
    /// # Errors
    ///
    /// When a question was not answered.
    pub fn finish_without_loss(self) -> Result<Tally> {
        let enough = ENOUGH.max(self.so_far()?.answered() + 1);
        wait_until(PATIENCE, "questions go on", || match self.so_far() {
            Ok(tally) if tally.failed() == 0 && tally.answered() < enough => None,
            _ => Some(()),
        })?;
        let tally = self.finish()?;
        ensure!(tally.failed() == 0, "{tally:?}");
        Ok(tally)
    }

    /// Ends it and returns how the questions went.
    pub fn finish(self) -> Result<Tally, Failure> {
        self.peer.tallied(&Order::StopLoad { id: self.id })
    }
}

/// Open sockets that are asked in rounds; dropping it closes them.
#[derive(Debug)]
pub struct Many<'a> {
    pub(super) peer: &'a Peer,
    pub(super) id: u64,
}

impl Many<'_> {
    /// Returns how the questions went until now.
    pub fn so_far(&self) -> Result<Ledger, Failure> {
        let report = self.peer.tell(&Order::RoundsSoFar { id: self.id })?;
        if let Report::Counted(ledger) = report {
            Ok(ledger)
        } else {
            Err(self.peer.confused(&report))
        }
    }
}

impl Drop for Many<'_> {
    fn drop(&mut self) {
        drop(self.peer.done(&Order::StopRounds { id: self.id }));
    }
}
