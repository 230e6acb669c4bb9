//! The benchmark `traffic`: connections, requests and bytes per second through namespaces, with plain routing, the real
//! kube-proxy and our agent in turn, with few and with many services.
//!
//! A path that does not answer gives no figure: every generator fails when an answer is missing.

use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lb_tests::cluster::Cluster;
use lb_tests::control_plane::ControlPlane;
use lb_tests::population::Population;
use lb_tests::topology::{Builder, Shape, Topology};

pub mod generator;
mod minimal;
mod programs;
mod proxy_kind;
pub mod server;
mod site;
mod turns;

use generator::Operation;
use proxy_kind::{ProxyKind, Question, Route};
use site::{Services, Site};
use turns::Series;

use super::machine::Machine;
use super::results::{Results, Row};

/// The network of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Pods behind routed veths, without netfilter rules.
    Routed,
    /// Pods behind a bridge, without netfilter rules.
    Bridged,
    /// Pods behind a bridge, and the netfilter rules of a CNI plugin: connection tracking sees every packet, FORWARD
    /// drops by default, and packets of pods to the outside are masqueraded.
    Cni,
}

impl FromStr for Network {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "routed" => Ok(Self::Routed),
            "bridged" => Ok(Self::Bridged),
            "cni" => Ok(Self::Cni),
            _ => bail!("network {text}: routed, bridged or cni"),
        }
    }
}

impl Network {
    const fn topology(self) -> Builder {
        match self {
            Self::Routed => Topology::builder(Shape::Routed),
            Self::Bridged => Topology::builder(Shape::Bridged),
            Self::Cni => Topology::builder(Shape::Bridged).firewall(),
        }
    }
}

/// The choices for a measurement and its report.
#[derive(Debug)]
pub struct Options<'a> {
    /// The compiled reference programs.
    pub reference: &'a Path,
    /// Directory for `results.json` and `report.html`.
    pub directory: &'a Path,
    /// The number of rounds that should count.
    pub rounds: usize,
    /// The time that one generator runs.
    pub time: Duration,
    /// The network of the nodes.
    pub network: Network,
    /// Numbers of services, from the smallest.
    pub services: &'a [u32],
    /// Names of routes, operations and modes. A category without any name here is measured completely.
    pub only: &'a [&'a str],
    pub commit: &'a str,
}

impl Options<'_> {
    /// Whether `name` is wanted: it is in `only`, or no name of its category `all` is.
    fn wants(&self, name: &str, all: &[&str]) -> bool {
        self.only.contains(&name) || !all.iter().any(|other| self.only.contains(other))
    }

    fn kinds(&self) -> Vec<ProxyKind> {
        let all = ProxyKind::ALL.map(ProxyKind::name);
        let wanted = |kind: &ProxyKind| self.wants(kind.name(), &all);
        let of =
            |kind: &ProxyKind| ProxyKind::ALL.iter().any(|one| wanted(one) && one.plain() == *kind);
        let is_in = |kind: &ProxyKind| *kind == ProxyKind::Plain || wanted(kind) || of(kind);
        ProxyKind::ALL.into_iter().filter(is_in).collect()
    }

    fn questions(&self, is_first: bool) -> Vec<Question> {
        let routes = Route::ALL.map(Route::name);
        let operations = Operation::ALL.map(Operation::name);
        let wanted = |question: &Question| {
            self.wants(question.route.name(), &routes)
                && self.wants(question.operation.name(), &operations)
        };
        proxy_kind::questions(is_first).into_iter().filter(wanted).collect()
    }
}

/// All clusters, and the API server that they share.
struct World {
    // Dropped before the namespaces that it lives in.
    control_plane: ControlPlane,
    population: Population,
    services: Services,
    sites: Vec<Site>,
}

/// Builds a cluster for each mode, measures them in turn, and writes the results.
pub fn traffic(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let machine = Machine::here(None)?;
    let mut world = World::build(options, out)?;
    let mut rows = Vec::new();
    let mut notes = vec![format!(
        "Network {:?}, {} rounds of {} ms a measurement; kube-proxy with its defaults.",
        options.network,
        options.rounds,
        options.time.as_millis()
    )];
    if !options.only.is_empty() {
        notes.push(format!("Only {} are measured.", options.only.join(", ")));
    }
    for (index, services) in options.services.iter().copied().enumerate() {
        let began = Instant::now();
        world.populate(services).with_context(|| format!("{services} services"))?;
        let seconds = began.elapsed().as_secs_f64();
        writeln!(out, "{services} services are programmed, after {seconds:.0} s")?;
        for kind in options.kinds().into_iter().filter(|kind| services > kind.most_services()) {
            notes.push(format!(
                "{} is not measured with {services} services: {}.",
                kind.name(),
                kind.why_no_more()
            ));
        }
        let questions = options.questions(index == 0).into_iter();
        let mut all: Vec<Series> = questions.map(|it| Series::new(it, services)).collect();
        let results = |rows: Vec<Row>| -> Result<Results> {
            let so_far = machine.clone().afterwards()?;
            let results = Results::new("traffic", options.commit, so_far, rows);
            Ok(results.noted(notes.clone()))
        };
        for round in 1..=options.rounds {
            for series in &mut all {
                series.measure(&world.sites, &world.services, options.time)?;
            }
            writeln!(out, "round {round} of {} with {services} services", options.rounds)?;
            let so_far = rows.iter().cloned().chain(all.iter().flat_map(Series::rows));
            drop(results(so_far.collect())?.keep(options.directory)?);
        }
        rows.extend(all.iter().flat_map(Series::rows));
        if index == 0 {
            let wanted = options.questions(true);
            let wants = |question| wanted.contains(&question);
            let (sites, time) = (&world.sites, options.time);
            rows.extend(programs::count(sites, &world.services, services, time, wants)?);
        }
        results(rows.clone())?.write(options.directory, out)?;
    }
    Ok(())
}

impl World {
    fn build(options: &Options<'_>, out: &mut impl Write) -> Result<Self> {
        let kinds = options.kinds();
        writeln!(out, "build {} clusters", kinds.len())?;
        let cluster = Cluster::in_topology(options.network.topology())?;
        let [near, far] = [cluster.publish("near", false)?, cluster.publish("far", false)?];
        cluster.endpoints(&near, &[cluster.rig().pod(0, 1)?])?;
        cluster.endpoints(&far, &[cluster.rig().pod(1, 0)?])?;
        let (control_plane, rig) = cluster.into_parts();
        let api_server = control_plane.address();
        let server = rig.topology().fabric().name().to_owned();
        // The API server lives in the cluster with plain routing, which does not use it.
        let mut sites = vec![Site::around(ProxyKind::Plain, rig)?];
        for kind in kinds.into_iter().filter(|kind| *kind != ProxyKind::Plain) {
            let mut site =
                Site::build(kind, options.network.topology()).with_context(|| kind.name())?;
            site.reach(api_server, &server)?;
            sites.push(site);
        }
        let (population, services) = (Population::default(), Services { near, far });
        for site in &mut sites {
            site.attach(options.reference, &services).with_context(|| site.kind.name())?;
        }
        Ok(Self { control_plane, population, services, sites })
    }

    /// Programs this number of services on all sites, and stops the processes of the control plane.
    fn populate(&mut self, services: u32) -> Result<()> {
        self.control_plane.resume()?;
        let backend = self.sites.first().context("no site")?.backend()?;
        let newest = self.population.grow(&self.control_plane, services, &[backend])?;
        for site in &mut self.sites {
            if services > site.kind.most_services() {
                continue;
            }
            site.stop_serving()?;
            let kubeconfig = self.control_plane.kubeconfig();
            site.program(&kubeconfig, &self.services, newest).with_context(|| site.kind.name())?;
            site.serve(&self.services)?;
        }
        self.control_plane.pause()
    }
}
