//! Many pods come: each gets its programs, and an agent that starts beside all of them attaches to all of them.
//!
//! The test prints its measurements: from an interface that is up to its programs, and from a start to the last
//! interface. In a campaign, as many threads as there are CPUs compute beside it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::{Direction, attached_programs};
use lb_tests::campaign;
use lb_tests::manifest::Service;
use lb_tests::netns::Netns;
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::{Shape, Topology};
use nix::net::if_::if_nametoindex;

/// Pods that come one after the other.
const ONE_BY_ONE: usize = 60;
/// Pods that are there when an agent starts.
const ALL: usize = 500;
/// Between two looks: one that looks all the time takes the agent's turns.
const LOOK: Duration = Duration::from_micros(200);
/// How long programs may take to come.
const SOON: Duration = Duration::from_mins(1);

#[test]
fn pods_that_come_and_pods_that_are_there_get_programs() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let peers = Netns::new("peers")?;
    let busy = campaign::size(0, thread::available_parallelism()?.get());
    let is_over = AtomicBool::new(false);
    // Else it would be turns of this thread that are measured.
    nice(-19);
    thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| {
                nice(0);
                while !is_over.load(Ordering::Relaxed) {
                    black_box((0..10_000_u64).sum::<u64>());
                }
            });
        }
        let result = (|| {
            let mut waits = Vec::new();
            for pod in 0..ONE_BY_ONE {
                add(&rig, &peers, pod..pod + 1)?;
                waits.push(until_attached(&rig, pod..pod + 1)?);
            }
            waits.sort_unstable();
            let (middle, late) = (waits[waits.len() / 2], waits[waits.len() * 9 / 10]);
            let worst = waits.last().context("a pod")?;
            for (name, wait) in [("median", &middle), ("9 of 10", &late), ("worst", worst)] {
                let name = format!("from up to attached beside {busy} busy threads, {name}");
                campaign::figure(&name, wait.as_micros(), "us");
            }
            add(&rig, &peers, ONE_BY_ONE..ALL)?;
            agent.stop()?;
            drop(agent.command(&["cleanup"])?);
            let began = Instant::now();
            agent.start_again()?;
            let ready = began.elapsed();
            until_attached(&rig, 0..ALL)?;
            let what = format!("start beside {ALL} pods and {busy} busy threads");
            campaign::figure(&format!("{what}, ready"), ready.as_millis(), "ms");
            campaign::figure(&format!("{what}, all attached"), began.elapsed().as_millis(), "ms");
            let began = Instant::now();
            agent.stop()?;
            drop(agent.command(&["cleanup"])?);
            println!("stopped and cleaned up after {:?}", began.elapsed());
            Ok(())
        })();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Gives the calling thread another nice value.
fn nice(value: i32) {
    // SAFETY: takes no pointers.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, value);
    }
}

/// Adds interfaces as a CNI plugin does, and returns when they are up.
fn add(rig: &Rig, peers: &Netns, pods: std::ops::Range<usize>) -> Result<()> {
    let commands = pods.map(|pod| {
        let peers = peers.name();
        format!(
            "link add many{pod} type veth peer name peer{pod} netns {peers}\n\
             link set many{pod} up\n"
        )
    });
    rig.node(0)?.netns().ip(&commands.collect::<String>())
}

/// Waits until all have programs in both directions, and says how long that took.
fn until_attached(rig: &Rig, pods: std::ops::Range<usize>) -> Result<Duration> {
    let began = Instant::now();
    let is_attached = |pod: usize| -> Result<bool> {
        let index = if_nametoindex(format!("many{pod}").as_str())?;
        let both = [Direction::Ingress, Direction::Egress].map(|it| attached_programs(index, it));
        Ok(both.into_iter().all(|found| found.is_ok_and(|found| !found.is_empty())))
    };
    rig.node(0)?.netns().run_in(|| {
        for pod in pods {
            while !is_attached(pod)? {
                ensure!(began.elapsed() < SOON, "many{pod} has no programs");
                thread::park_timeout(LOOK);
            }
        }
        Ok(began.elapsed())
    })?
}
