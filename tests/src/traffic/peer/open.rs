//! Resources that a [`Peer`] holds open: a socket, a load, many sockets. Dropping any of them closes it.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::load::Tally;
use super::super::rounds::Ledger;
use super::super::session::{Order, Report};
use super::super::{Answer, Ask, Failure};
use super::Peer;
use crate::wait::wait_until;

/// The deadline for [`ENOUGH`] answers; within it each question is answered or lost.
const PATIENCE: Duration = Duration::from_mins(1);
/// The number of answers after which a load counts as evidence.
const ENOUGH: u64 = 21;
/// A socket that stays open between questions; dropping it closes it.
#[derive(Debug)]
pub struct Kept<'a> {
    pub(super) peer: &'a Peer,
    pub(super) id: u64,
    pub(super) ask: Ask,
}

impl Kept<'_> {
    /// Asks the same question again, through the same socket.
    pub fn ask(&self) -> Result<Answer, Failure> {
        self.ask_as(self.ask)
    }

    /// Asks another question; an unconnected UDP socket can so ask another server.
    pub fn ask_as(&self, ask: Ask) -> Result<Answer, Failure> {
        self.peer.asked(&Order::AskOn { id: self.id, ask })
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        drop(self.peer.done(&Order::Close { id: self.id }));
    }
}

/// Continuous questions in the background; dropping it stops them.
#[derive(Debug)]
pub struct Load<'a> {
    pub(super) peer: &'a Peer,
    pub(super) id: u64,
}

impl Load<'_> {
    /// Returns the account so far.
    pub fn so_far(&self) -> Result<Tally, Failure> {
        self.peer.tallied(&Order::LoadSoFar { id: self.id })
    }

    /// Stops the questions once there are [`ENOUGH`] answers, one of them after this call, because the observed change
    /// may have been quick.
    ///
    /// # Errors
    ///
    /// If a question was not answered.
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

    /// Stops the questions and returns the account.
    pub fn finish(self) -> Result<Tally, Failure> {
        self.peer.tallied(&Order::StopLoad { id: self.id })
    }
}

/// Open sockets that ask in rounds; dropping it closes them.
#[derive(Debug)]
pub struct Many<'a> {
    pub(super) peer: &'a Peer,
    pub(super) id: u64,
}

impl Many<'_> {
    /// Returns the account so far.
    pub fn so_far(&self) -> Result<Ledger, Failure> {
        let report = self.peer.order(&Order::RoundsSoFar { id: self.id })?;
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
