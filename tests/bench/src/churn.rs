//! The benchmark `churn`: the time from a change in the API to the first packet that follows it, and from a start to
//! the first answer.
//!
//! It compares our agent with the real kube-proxy, with few and with many services.
//!
//! A measurement begins when the request to the API server begins. An answer that comes before the change was made is
//! an error.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::cluster::Cluster;
use lb_tests::population::Population;
use lb_tests::topology::{Family, Shape};
use lb_tests::wait::pass;

mod api;
mod probe;
mod proxy_kind;

use api::Changer;
use proxy_kind::{ProxyKind, Running};

use super::figures::Figure;
use super::load::Usage;
use super::machine::Machine;
use super::results::{Results, Row};

/// Endpoints of each service that no client uses.
const ENDPOINTS: usize = 3;
/// The deadline for a change.
const PATIENCE: Duration = Duration::from_mins(1);
/// The pause after which no earlier change is in progress: kube-proxy waits a second between two syncs.
const REST: Duration = Duration::from_secs(2);

/// The choices for a measurement and its report.
#[derive(Debug)]
pub struct Options<'a> {
    /// Directory for `results.json` and `report.html`.
    pub directory: &'a Path,
    pub commit: &'a str,
    /// Numbers of services, from the smallest.
    pub services: &'a [u32],
    /// The number of starts of each proxy.
    pub rounds: usize,
    /// Changes of each kind after a start. Our agent takes milliseconds for one, so it gets at least a hundred over all
    /// rounds.
    pub changes: u32,
}

/// A kind of change, by which the figures are labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// A slice gets another backend as soon as packets follow the change before.
    Endpoints,
    /// A slice gets another backend after a pause of [`REST`].
    Alone,
    /// A Service is created.
    Service,
}

impl Change {
    const ALL: [Self; 3] = [Self::Endpoints, Self::Alone, Self::Service];

    const fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Alone => "endpoints after 2 s of rest",
            Self::Service => "service",
        }
    }
}

/// The figures of one proxy at one number of services.
#[derive(Debug, Default)]
struct Figures {
    changes: [Figure; 3],
    start: Figure,
    anonymous: Figure,
    maps: Figure,
    rounds: usize,
    disturbed: usize,
}

/// Changes per round that add up to a hundred over all rounds.
const fn of_a_hundred(rounds: usize) -> u32 {
    100_usize.div_ceil(if rounds == 0 { 1 } else { rounds }) as u32
}

/// Measures every proxy at every number of services in turn, and writes the results and the report.
pub fn churn(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let machine = Machine::here(None)?;
    let cluster = Cluster::without_agents(Shape::Routed)?;
    let mut bench = Bench::new(&cluster)?;
    let mut rows = Vec::new();
    let results = |rows: Vec<Row>| -> Result<Results> {
        let so_far = machine.clone().afterwards()?;
        let results = Results::new("churn", options.commit, so_far, rows);
        let notes = vec![format!(
            "{} rounds, each with a start and {} changes of each kind (a quarter of these with a pause before), {} for lb-agent; \
             kube-proxy with its defaults, which wait a second between two syncs. All other services have {ENDPOINTS} \
             endpoints. The request to the API server is part of a time. No round is dropped: disturbed rounds are marked.",
            options.rounds,
            options.changes,
            options.changes.max(of_a_hundred(options.rounds))
        )];
        Ok(results.noted(notes))
    };
    for services in options.services.iter().copied() {
        bench.populate(services)?;
        let mut all = ProxyKind::ALL.map(|kind| (kind, Figures::default()));
        let of_all = |all: &[(ProxyKind, Figures)]| -> Vec<Row> {
            all.iter().flat_map(|(kind, figures)| figures.rows(*kind, services)).collect()
        };
        for round in 1..=options.rounds {
            for (kind, figures) in &mut all {
                let what = || format!("{} with {services} services", kind.name());
                let few = options.changes;
                let many = if *kind == ProxyKind::Ours { of_a_hundred(options.rounds) } else { 0 };
                bench.round(*kind, few, few.max(many), figures).with_context(what)?;
                writeln!(out, "round {round} of {}: {}", options.rounds, what())?;
            }
            drop(results([rows.clone(), of_all(&all)].concat())?.keep(options.directory)?);
        }
        rows.extend(of_all(&all));
        // Written now, so that these figures stay if a proxy fails with more services.
        results(rows.clone())?.write(options.directory, out)?;
    }
    Ok(())
}

impl Figures {
    fn rows(&self, kind: ProxyKind, services: u32) -> Vec<Row> {
        let (services, endpoints) = (services.to_string(), ENDPOINTS.to_string());
        let labels = [("way", kind.name()), ("services", &*services), ("endpoints", &endpoints)];
        let row = |labels: &[(&str, &str)], measure: &str, unit: &str, of: &Figure| {
            Row::new(labels, measure, unit, of).judged(kind == ProxyKind::Ours)
        };
        // No round is dropped: a change that other work delayed was late all the same. Memory does not depend on other
        // work.
        let time = |row: Row| Row { disturbed: self.disturbed > 0, ..row.of_rounds(self.rounds) };
        let mut rows = Vec::new();
        for (change, times) in Change::ALL.iter().zip(&self.changes) {
            let labels = [&labels[..], &[("change", change.name())]].concat();
            rows.push(time(row(&labels, "latency 50 %", "ms", times)));
            rows.push(time(Row::late(&labels, "latency", "ms", times, kind == ProxyKind::Ours)));
        }
        rows.push(time(row(&labels, "cold start", "s", &self.start)));
        rows.push(row(&labels, "anonymous memory", "MB", &self.anonymous));
        if self.maps.len() > 0 {
            rows.push(row(&labels, "map memory", "MB", &self.maps));
        }
        rows
    }
}

/// The cluster in which the changes are made.
struct Bench<'a> {
    cluster: &'a Cluster,
    population: Population,
    changer: Changer,
    /// Whether the probe Service exists, whose endpoints change. It is always the newest Service.
    has_probe: bool,
}

const PROBE: &str = "probe";
/// The two backends of the probe Service, used in turn.
const BACKENDS: [&str; 2] = ["pod-b1", "pod-b2"];

impl<'a> Bench<'a> {
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let mut population = Population::default();
        // Creates the namespace `population`, which also holds the services that change.
        population.grow(cluster.control_plane(), 1, &backends(cluster))?;
        let changer = Changer::new(cluster.control_plane())?;
        Ok(Self { cluster, population, changer, has_probe: false })
    }

    fn populate(&mut self, services: u32) -> Result<()> {
        let all = backends(self.cluster);
        self.population.grow(self.cluster.control_plane(), services, &all)?;
        if self.has_probe {
            self.changer.remove(PROBE)?;
        }
        self.has_probe = true;
        self.changer.make(PROBE, Changer::probe_address(), &self.address(0)?).map(drop)
    }

    /// The address of backend `index` of [`BACKENDS`].
    fn address(&self, index: usize) -> Result<String> {
        Ok(self.cluster.rig().pod(1, index)?.ip(Family::V4).to_string())
    }

    /// Starts a proxy, makes the changes, and stops it. Changes that need a pause before them are made a quarter of
    /// `few` times.
    fn round(&mut self, kind: ProxyKind, few: u32, many: u32, figures: &mut Figures) -> Result<()> {
        let before = Usage::now()?;
        let probe = Changer::probe_address();
        self.changer.point(PROBE, &self.address(0)?)?;
        let kubeconfig = self.cluster.control_plane().kubeconfig();
        let rig = self.cluster.rig();
        let (running, took): (Running<'_>, Duration) =
            kind.start(rig, &kubeconfig, probe, BACKENDS[0])?;
        figures.start.add(took.as_secs_f64());
        let [endpoints, alone, service] = &mut figures.changes;
        for number in 1..=many {
            endpoints.add(self.endpoints(probe, number)?);
        }
        for number in 1..=few.div_ceil(4) {
            pass(REST);
            alone.add(self.endpoints(probe, many + number)?);
        }
        for number in 1..=many {
            service.add(self.service(number)?);
        }
        let memory = running.memory()?;
        figures.anonymous.add(memory.anonymous as f64 / 1e6);
        if let Some(maps) = memory.maps {
            figures.maps.add(maps as f64 / 1e6);
        }
        figures.rounds += 1;
        figures.disturbed += usize::from(!before.was_calm(&Usage::now()?));
        running.end()
    }

    /// Gives the probe Service its other backend; returns the milliseconds until a packet went there.
    fn endpoints(&self, probe: SocketAddr, number: u32) -> Result<f64> {
        let index = number as usize % 2;
        let (address, server) = (self.address(index)?, BACKENDS[index]);
        let pod = self.cluster.rig().pod(0, 0)?;
        let asked = std::thread::scope(|scope| -> Result<(Instant, Instant)> {
            let wait = move || probe::until_answered_by(probe, server, PATIENCE);
            let probing = scope.spawn(move || pod.home().run_in(wait));
            let began = self.changer.point(PROBE, &address)?;
            let answered = probing
                .join()
                .ok()
                .with_context(|| format!("the client of {probe} panicked"))???;
            Ok((began, answered))
        });
        milliseconds(asked.with_context(|| format!("change {number}"))?)
    }

    /// Creates a Service, and removes it after its first answer; returns the milliseconds until that answer.
    fn service(&mut self, number: u32) -> Result<f64> {
        let pod = self.cluster.rig().pod(0, 0)?;
        let name = format!("new-{number}");
        let to = self.changer.next_address();
        let early = pod.home().run_in(|| probe::is_answered(to))??;
        ensure!(!early, "{to} was answered before {name} was made");
        let backend = self.address(0)?;
        let asked = std::thread::scope(|scope| -> Result<(Instant, Instant)> {
            let wait = move || probe::until_answered_by(to, BACKENDS[0], PATIENCE);
            let probing = scope.spawn(move || pod.home().run_in(wait));
            let began = self.changer.make(&name, to, &backend)?;
            let answered = probing
                .join()
                .ok()
                .with_context(|| format!("the client of {to} panicked"))???;
            Ok((began, answered))
        });
        let milliseconds = milliseconds(asked.with_context(|| name.clone())?)?;
        self.changer.remove(&name)?;
        Ok(milliseconds)
    }
}

fn milliseconds((began, answered): (Instant, Instant)) -> Result<f64> {
    let took = answered.checked_duration_since(began).context("answered before the change")?;
    Ok(took.as_secs_f64() * 1_000.0)
}

fn backends(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.rig().pods();
    let addresses = pods.iter().take(ENDPOINTS).map(|pod| pod.ip(Family::V4).to_string());
    addresses.collect()
}
