//! One rig for all tests of a file: agents start once, and Services come and go with each test.
//!
//! The rig is never dropped: when the test process ends, the janitor of the topology removes everything.

use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};

use anyhow::{Context as _, Result, anyhow};

use super::{Rig, TARGET, until};
use crate::join_all::locked;
use crate::manifest::Service;
use crate::topology::{Family, Shape, Topology};
use crate::traffic::Ask;

static ROUTED: LazyLock<Lender> = LazyLock::new(|| Lender::start(Shape::Routed));
static BRIDGED: LazyLock<Lender> = LazyLock::new(|| Lender::start(Shape::Bridged));

type Started = Result<Arc<Rig>, String>;

/// Lends one rig to one test after another: the rig waits in the channel for its next borrower.
struct Lender {
    lend: Mutex<Receiver<Started>>,
    back: Sender<Started>,
}

/// The rig of a shape, lent to one test; dropping it removes the Services of the test.
#[derive(Debug)]
pub struct Shared {
    rig: Arc<Rig>,
    back: Sender<Started>,
    services: Vec<Service>,
}

impl Lender {
    fn start(shape: Shape) -> Self {
        let (back, lend) = channel();
        let rig = Rig::build(Topology::builder(shape)).and_then(|rig| rig.start(&[]));
        // The receiver is there, so sending cannot fail.
        drop(back.send(rig.map(Arc::new).map_err(|error| format!("{error:#}"))));
        Self { lend: Mutex::new(lend), back }
    }

    fn lend(&self) -> Started {
        let started = locked(&self.lend).recv();
        let started = started.map_err(|error| error.to_string())?;
        if started.is_err() {
            // The error is returned to the channel, so that the next borrower gets it as well.
            drop(self.back.send(started.clone()));
        }
        started
    }
}

impl Rig {
    /// Borrows the rig of all tests of this process, with two nodes, four pods and agents without any Service. Only for
    /// tests that change nothing but Services.
    pub fn shared(shape: Shape) -> Result<Shared> {
        let lender = match shape {
            Shape::Routed => &ROUTED,
            Shape::Bridged => &BRIDGED,
        };
        let rig = lender.lend().map_err(|error| anyhow!("the rig of this file: {error}"))?;
        Ok(Shared { rig, back: lender.back.clone(), services: Vec::new() })
    }
}

impl Shared {
    /// Adds Services; packets follow them when this returns.
    pub fn start(mut self, services: &[&Service]) -> Result<Self> {
        for service in services {
            self.manifests().apply(service)?;
            self.services.push((*service).clone());
        }
        self.wait_for_agents()?;
        Ok(self)
    }

    /// Waits until the agents have finished all earlier changes.
    ///
    /// Agents process events in order, but may combine several of them. Once a second change has taken effect that was
    /// made after a first one had, all earlier changes are done.
    fn wait_for_agents(&self) -> Result<()> {
        static NUMBER: AtomicU8 = AtomicU8::new(0);
        for _ in 0..2 {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 50;
            let marker = Service::new(&format!("marker-{number}"), 200 + number)?;
            let marker = marker.port(80, TARGET).pods(&[self.pod(0, 0)?]);
            self.manifests().apply(&marker)?;
            for (node, family) in
                [(0, Family::V4), (0, Family::V6), (1, Family::V4), (1, Family::V6)]
            {
                let question = Ask::tcp(marker.frontend(family));
                until(self.pod(node, 1)?, question, Result::is_ok).context("marker of the rig")?;
            }
            self.manifests().delete(&marker)?;
        }
        Ok(())
    }
}

impl Deref for Shared {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for service in &self.services {
            // Fails harmlessly if the test has already deleted the Service.
            drop(self.manifests().delete(service));
        }
        drop(self.back.send(Ok(Arc::clone(&self.rig))));
    }
}
