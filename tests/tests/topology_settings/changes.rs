//! Sockets that stay open: datagrams follow every change of their Service, connections stay with their backend.

use anyhow::{Context as _, Result, ensure};
use lb_tests::join_all::join_all;
use lb_tests::manifest::Service;
use lb_tests::rig::{TARGET, answered_by, until};
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::{Answer, Ask, Failure, Kept, Protocol};
use lb_tests::wait::wait_until;

use super::SOON;
use super::world::World;

/// A second target port of the backend.
const OTHER: u16 = 9_090;
/// The timeout in milliseconds of one question, which is repeated.
const IMPATIENT: u64 = 300;

type Outcome = Result<Answer, Failure>;

/// The UDP sockets of one member, one for each family.
struct Sockets<'a> {
    member: &'a Member,
    kept: Vec<(Ask, Kept<'a>)>,
}

impl<'a> Sockets<'a> {
    /// Connects the sockets to a Service without endpoints.
    fn open(member: &'a Member, to: &Service) -> Result<Self> {
        let mut kept = Vec::new();
        for family in Family::ALL {
            let question = Ask::udp(to.frontend(family)).within(IMPATIENT);
            until(member, question, |outcome| *outcome == Err(Failure::Refused))?;
            kept.push((question, member.peer().keep(question)?));
        }
        Ok(Self { member, kept })
    }

    /// Opens a TCP connection for each family.
    fn connect(&self) -> Result<Vec<Kept<'a>>> {
        let mut open = Vec::new();
        for (question, _) in &self.kept {
            until(self.member, Ask::tcp(question.to), answered_by("pod-a2"))?;
            let connection = self.member.peer().keep(Ask::tcp(question.to))?;
            ensure!(connection.ask()?.server == "pod-a2");
            open.push(connection);
        }
        Ok(open)
    }

    /// Asks repeatedly through each of the sockets until the outcome satisfies `expected`.
    fn ask(&self, what: &str, expected: impl Fn(&Outcome) -> bool) -> Result<()> {
        for (question, kept) in &self.kept {
            let mut last = None;
            let found = wait_until(SOON, what, || expected(last.insert(kept.ask())).then_some(()));
            found.with_context(|| format!("{} asks {question:?}: {last:?}", self.member.name()))?;
        }
        Ok(())
    }
}

/// Runs [`Sockets::ask`] for all members in parallel.
fn each(all: &[Sockets<'_>], what: &str, expected: impl Fn(&Outcome) -> bool + Sync) -> Result<()> {
    join_all(all.iter().map(|sockets| || sockets.ask(what, &expected))).map(drop)
}

/// Sockets of a pod and of the host of both nodes, connected before there is an endpoint.
pub(crate) fn sockets_that_stay_see_changes(world: &mut World) -> Result<()> {
    let mut agent = world.rig.take_agent(0)?;
    let rig = &world.rig;
    let [near, far] = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let none = Service::new("late", 16)?.port(80, TARGET);
    let [at_near, at_far] = [near, far].map(|pod| none.clone().pods(&[pod]));
    rig.manifests().apply(&none)?;
    let askers = world.askers()?;
    let members = askers.iter().filter(|asker| asker.node.is_some()).map(|asker| asker.member);
    let mut all: Vec<Sockets<'_>> = Vec::new();
    for member in members {
        all.push(Sockets::open(member, &none)?);
    }
    let change = |to: &Service, name: &str| -> Result<()> {
        rig.manifests().apply(to)?;
        each(&all, &format!("{name} answers"), answered_by(name))
    };
    change(&at_near, "pod-a2")?;
    let connections = join_all(all.iter().map(|sockets| || sockets.connect()))?;
    change(&at_far, "pod-b2")?;
    for protocol in Protocol::ALL {
        far.peer().stop_serving(protocol, &far.addresses().both(), TARGET)?;
        far.peer().serve(protocol, &far.addresses().both(), OTHER)?;
    }
    change(&at_far.clone().retarget(OTHER), "pod-b2")?;
    for protocol in Protocol::ALL {
        far.peer().stop_serving(protocol, &far.addresses().both(), OTHER)?;
        far.peer().serve(protocol, &far.addresses().both(), TARGET)?;
    }
    rig.manifests().apply(&none)?;
    each(&all, "no endpoint is left", |outcome| *outcome == Err(Failure::Refused))?;
    change(&at_near, "pod-a2")?;
    rig.manifests().delete(&none)?;
    each(&all, "the Service is deleted", Result::is_err)?;
    change(&at_far, "pod-b2")?;
    agent.stop()?;
    each(&all, "the agent is stopped", answered_by("pod-b2"))?;
    agent.start_again()?;
    each(&all, "the agent is restarted", answered_by("pod-b2"))?;
    change(&at_near, "pod-a2")?;
    for (sockets, open) in all.iter().zip(&connections) {
        for connection in open {
            let (name, stayed) = (sockets.member.name(), connection.ask()?.server);
            ensure!(stayed == "pod-a2", "{name}: a connection moved to {stayed}");
        }
    }
    Ok(())
}
