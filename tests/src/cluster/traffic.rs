//! Continuous questions of all clients of a cluster to one Service, while agents or the API server restart.

use anyhow::{Context as _, Result, ensure};

use super::{Published, askers};
use crate::rig::Rig;
use crate::topology::Member;
use crate::traffic::{Ask, Load};

/// Milliseconds between two questions of one client.
const PAUSE: u64 = 20;

/// Continuous questions of all clients: each through a kept connection or socket, and through new ones.
#[derive(Debug)]
pub struct Traffic<'a>(Vec<(&'a Member, Ask, bool, Load<'a>)>);

impl<'a> Traffic<'a> {
    /// Starts the questions.
    pub fn start(rig: &'a Rig, service: &Published) -> Result<Self> {
        let mut loads = Vec::new();
        for (from, question) in askers(rig, service)? {
            for kept in [true, false] {
                loads.push((from, question, kept, from.peer().load(question, kept, PAUSE)?));
            }
        }
        Ok(Self(loads))
    }

    /// Stops the questions. Fails unless every question was answered, and each connection by one backend all the time.
    pub fn finish(self) -> Result<()> {
        for (from, question, kept, load) in self.0 {
            let (name, protocol) = (from.name(), question.protocol);
            let what = format!("{name} asks {} by {protocol}, kept: {kept}", question.to);
            let tally = load.finish_without_loss().with_context(|| what.clone())?;
            ensure!(!kept || tally.servers.len() == 1, "{what}: {tally:?}");
        }
        Ok(())
    }
}
