//! The agent's life: objects and links come in, operations go out, flows are swept, until somebody says stop.
//!
//! One loop owns the tracker, the book and the maps; everything that may block or wait is a task
//! beside it. Ending it leaves the data path as it is.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use kube::Client;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use crate::cli;
use crate::config::Config;
use crate::datapath::{self, Datapath};
use crate::health::{Health, NodeState};
use crate::health_check::HealthChecks;
use crate::kube_events::Events;
use crate::manifests::{Manifests, ManifestsError};
use crate::maps::{self, Maps};
use crate::metrics::kube_proxy::KubeProxy;
use crate::metrics::{self, Numbers};
use crate::node::View;
use crate::plan::Family;
use crate::program::{Change, GRACE, Programmer};
use crate::snapshot::{Event, NodeContext, ViewHealth};
use crate::sweep::{self, Report};
use crate::tracker::{Effect, Tracker};
use crate::watch::client::{ClientError, Server};
use crate::watch::{ListMode, Watch};

mod devices;
mod intent;
mod kubernetes;
mod orphans;
mod servers;
mod service_manager;
mod state;
mod sweeper;
mod writer;

use devices::Devices;
pub use intent::intent;
use kubernetes::Shown;
use orphans::{Orphans, may_orphan};
use service_manager::{ServiceManager, take_resources};
pub(crate) use state::name;
pub use state::{Known, State, state_file};
pub(crate) use sweeper::monotonic;
use sweeper::period;
use writer::Writer;

/// Events that are taken in before something is programmed: an end to a long list's patience.
const AT_ONCE: usize = 50_000;

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's side.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    /// A map.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// The folder of manifests.
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    /// The API server's address or credentials.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The lists do not come.
    #[error(
        "the source gave no complete lists within {0:?}: is the API server there, and readable?"
    )]
    NoLists(Duration),
    /// A signal handler or a namespace cookie.
    #[error("system call")]
    System(#[from] std::io::Error),
}

/// What the loop owns.
struct Agent {
    began: Instant,
    tracker: Tracker,
    programmer: Programmer,
    writer: Writer,
    orphans: Orphans,
    devices: Devices,
    health: Health,
    shown: Shown,
    numbers: Arc<Numbers>,
    state: State,
    manager: ServiceManager,
    /// Before this an earlier run's packets may still read what it had given up.
    earliest: Instant,
    is_programmed: bool,
    is_settled: bool,
    lifetimes: sweep::Lifetimes,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(options: cli::Run, config: Config) -> Result<(), Error> {
    config.warnings.iter().for_each(|warning| warn!(warning, "configuration"));
    let config = Arc::new(config);
    let name = config.node();
    let paths = datapath::Options {
        bpf_dir: config.bpf_dir.value.clone(),
        cgroup: config.cgroup(),
        sizes: config.sizes(),
        packet_log: options.packet_log,
    };
    take_resources(&config.oom_score_adj);
    let mut stop = Stop::new()?;
    // First what is quickly known to be wrong; then lists arrive while programs are verified.
    let view = ViewHealth::default();
    let (sender, events) = mpsc::channel(4_096);
    let kube_proxy = KubeProxy::default();
    let observed = (&view, &kube_proxy);
    let client =
        start_source(options.manifests.as_deref(), &config, &name, observed, sender).await?;
    let Some(mut datapath) = load(paths.clone(), &mut stop).await? else { return Ok(()) };
    if let Some(records) = datapath.take_packet_log() {
        drop(tokio::spawn(records.follow()));
    }
    let maps = datapath.maps()?;
    let began = Instant::now();
    let actual = maps.actual()?;
    let earliest = if actual.services.is_empty() { began } else { datapath.since() + GRACE };
    let programmer = Programmer::adopt(maps.limits()?, actual, Duration::ZERO);
    let devices = Devices::new(datapath, Arc::clone(&config), &maps)?;
    let shared = Arc::new(devices.maps()?);
    let numbers = Arc::new(Numbers::default());
    let mut agent = Agent {
        began,
        tracker: Tracker::new(NodeContext {
            service_proxy_name: config.service_proxy_name.value.as_deref().map(Arc::from),
            ..NodeContext::named(&name)
        }),
        programmer,
        writer: Writer::new(maps),
        orphans: Orphans::start(Arc::clone(&shared), Arc::clone(&numbers)),
        devices,
        health: Health::default(),
        shown: Shown {
            checks: HealthChecks::default(),
            events: client.map(|client| Events::start(client, &name)).unwrap_or_default(),
            metrics: kube_proxy.clone(),
        },
        numbers,
        state: State::at(&paths.bpf_dir, &name, view.clone()),
        manager: ServiceManager::of_environment(),
        earliest,
        is_programmed: false,
        is_settled: false,
        lifetimes: config.lifetimes(),
    };
    let sources = metrics::Sources {
        maps: Arc::clone(&shared),
        numbers: Arc::clone(&agent.numbers),
        health: agent.health.clone(),
        kube_proxy,
        view,
        configz: config.configz().to_string().into(),
    };
    if let Some(address) = config.healthz.value {
        servers::start(address, "health", crate::health::router(agent.health.clone()));
    }
    if let Some(address) = config.metrics.value {
        servers::start(address, "metrics", metrics::router(sources));
    }
    info!(node = name, bpf_dir = %paths.bpf_dir.display(), cgroup = %paths.cgroup.display(), "agent runs");
    agent.shown.events.node("Starting", String::new());
    agent.work(events, shared, &mut stop).await;
    ServiceManager::stopping();
    agent.state.write(&agent.programmer);
    info!("agent ends; the data path goes on");
    Ok(())
}

/// Loads and attaches to sockets, which takes seconds; nothing if we are asked to stop meanwhile.
async fn load(paths: datapath::Options, stop: &mut Stop) -> Result<Option<Datapath>, Error> {
    let loading = spawn_blocking(move || {
        let mut datapath = Datapath::load(&paths)?;
        datapath.attach_sockets(&paths.cgroup)?;
        Ok(datapath)
    });
    tokio::select! {
        loaded = loading => loaded.map_err(std::io::Error::from)?.map(Some),
        () = stop.asked() => Ok(None),
    }
}

/// Starts the task that follows the objects.
async fn start_source(
    manifests: Option<&Path>,
    config: &Config,
    node: &str,
    (view, kube_proxy): (&ViewHealth, &KubeProxy),
    events: mpsc::Sender<Event>,
) -> Result<Option<Client>, Error> {
    let view = view.clone();
    if let Some(folder) = manifests {
        let manifests = Manifests::open(folder, node)?;
        drop(tokio::spawn(manifests.run(view, events)));
        return Ok(None);
    }
    let server =
        Server { kubeconfig: config.kubeconfig.value.clone(), master: config.master.value.clone() };
    let client = server.client(&view, Some(Arc::new(kube_proxy.clone()))).await?;
    let watch = Watch {
        node: node.to_owned(),
        service_proxy_name: config.service_proxy_name.value.clone(),
        list: ListMode::default(),
    };
    drop(tokio::spawn(watch.run(client.clone(), view, events)));
    Ok(Some(client))
}

impl Agent {
    /// The loop.
    async fn work(
        &mut self,
        mut events: mpsc::Receiver<Event>,
        shared: Arc<Maps>,
        stop: &mut Stop,
    ) {
        let (sender, mut views) = watch::channel(None);
        drop(tokio::spawn(crate::node::watch::run(sender)));
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweeping: Option<JoinHandle<Result<Report, maps::Error>>> = None;
        let mut next_sweep = Instant::now() + Duration::from_secs(1);
        loop {
            tokio::select! {
                biased;
                () = stop.asked() => return,
                Ok(()) = views.changed() => {
                    let view = views.borrow_and_update().clone();
                    self.take_view(view);
                }
                Some(event) = events.recv() => self.take_events(event, &mut events),
                Some(result) = OptionFuture::from(sweeping.as_mut()) => {
                    sweeping = None;
                    next_sweep = Instant::now() + self.take_report(result);
                }
                _ = tick.tick() => {
                    self.tick();
                    if sweeping.is_none() && Instant::now() >= next_sweep {
                        sweeping = Some(self.begin_sweep(&shared));
                    }
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Links or addresses are others.
    fn take_view(&mut self, view: Option<View>) {
        let Some(view) = view else { return };
        self.devices.set_view(view);
        self.update_node();
    }

    /// Objects are others.
    fn take_events(&mut self, first: Event, events: &mut mpsc::Receiver<Event>) {
        let mut node_changed = self.take_event(first);
        for _ in 0..AT_ONCE {
            let Ok(event) = events.try_recv() else { break };
            node_changed |= self.take_event(event);
        }
        if node_changed {
            let leaving = self.tracker.node().map(|node| node.deleting || node.to_be_deleted);
            self.health.node(match leaving {
                None => NodeState::Unknown,
                Some(true) => NodeState::Leaving,
                Some(false) => NodeState::Eligible,
            });
            self.update_node();
        }
        self.program();
    }

    fn take_event(&mut self, event: Event) -> bool {
        match self.tracker.apply(event) {
            Effect::Node => true,
            Effect::ServiceCidrs => {
                let ops = self.programmer.set_service_cidrs(self.tracker.service_cidrs());
                self.write(ops);
                false
            }
            Effect::Services => {
                self.shown.metrics.queued();
                false
            }
            Effect::Nothing => false,
        }
    }

    /// Brings settings, addresses and devices up to date with links and Node.
    fn update_node(&mut self) {
        let context = self.tracker.context();
        let ip = |family| context.ip(family);
        let ips = (ip(Family::V4), ip(Family::V6));
        self.devices.set_node(self.tracker.node(), ips);
        let settings = self.devices.settings();
        let ops = self.programmer.set_node(&settings);
        self.write(ops);
        self.devices.apply(self.tracker.is_synced(), &self.numbers);
        let (own, all) = self.devices.served();
        self.shown.addresses(own, all);
        self.report_ready();
    }

    /// Programs what changed.
    fn program(&mut self) {
        self.health.pending(self.tracker.dirty_since());
        if !self.tracker.is_synced() || Instant::now() < self.earliest {
            return;
        }
        let taken = self.tracker.take();
        if taken.is_empty() && self.is_programmed {
            return;
        }
        for (service, translated) in &taken {
            for finding in translated.iter().flat_map(|translated| &translated.findings) {
                warn!(%service, %finding, "part of a Service is not served");
            }
        }
        self.shown.taken(&taken);
        let changes = taken.into_iter().map(|(service, translated)| Change {
            service,
            ports: translated.map(|translated| translated.ports).unwrap_or_default(),
        });
        let changes: Vec<Change> = changes.collect();
        let (services, began) = (changes.len(), Instant::now());
        let mut ops = self.programmer.plan(self.now(), changes);
        if !self.is_programmed {
            ops.extend(self.programmer.synced(self.now()));
        }
        let operations = ops.len();
        self.write(ops);
        self.shown.programmed(&mut self.tracker, began.elapsed(), !self.is_programmed);
        self.is_programmed = true;
        self.state.changed();
        debug!(services, operations, took = ?began.elapsed(), "services programmed");
        self.update_node();
    }

    fn write(&mut self, ops: Vec<crate::program::Op>) {
        let may_orphan = may_orphan(&ops);
        self.writer.write(ops, &self.numbers);
        self.orphans.look(may_orphan);
        if self.writer.is_done() && self.tracker.dirty_since().is_none() {
            self.health.updated();
        }
    }

    fn count(&self) {
        Numbers::set(&self.numbers.refused, self.programmer.refused().count());
        Numbers::set(&self.numbers.conflicts, self.programmer.conflicts().len());
        let mut usage =
            self.numbers.usage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *usage = self.programmer.usage();
    }

    /// Once a second: what is due, what failed, what waits.
    fn tick(&mut self) {
        if self.programmer.is_waiting() {
            let ops = self.programmer.tick(self.now());
            self.write(ops);
        }
        self.writer.retry(&self.numbers);
        self.devices.retry(self.tracker.is_synced(), &self.numbers);
        self.program();
        self.manager.alive();
        self.shown.tick(self.health.is_fresh());
        self.shown.changes(&self.tracker);
        self.report_ready();
        if self.state.is_due() {
            self.count();
            self.shown.shortcomings(&self.programmer);
            self.state.write(&self.programmer);
        }
    }

    fn report_ready(&mut self) {
        if self.tracker.is_synced() && self.devices.is_complete() && !self.is_settled {
            self.is_settled = true;
            self.devices.settle();
        }
        if self.is_programmed && self.is_settled && self.writer.is_done() && !self.health.is_ready()
        {
            // Whoever asks now is told names, not numbers.
            self.state.write(&self.programmer);
            self.health.ready();
            self.manager.ready();
            let took = self.began.elapsed();
            info!(?took, "everything is programmed");
        }
    }

    fn begin_sweep(&self, maps: &Arc<Maps>) -> JoinHandle<Result<Report, maps::Error>> {
        let maps = Arc::clone(maps);
        let context = sweep::Context {
            leaving: self.programmer.leaving(),
            began: self.now(),
            lifetimes: self.lifetimes,
        };
        spawn_blocking(move || sweep::sweep(&maps, &context, monotonic()))
    }

    /// Takes a sweep's report over, and says when the next one is due.
    fn take_report(
        &mut self,
        result: Result<Result<Report, maps::Error>, tokio::task::JoinError>,
    ) -> Duration {
        let report = match result {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                warn!(error = %crate::chain(&error), "flows were not swept");
                return period(0, 0);
            }
            Err(error) => {
                warn!(%error, "flows were not swept");
                return period(0, 0);
            }
        };
        Numbers::add(&self.numbers.swept, report.removed);
        if self.is_programmed {
            let ops = self.programmer.bury(self.now(), report.began, &report.live);
            self.write(ops);
        }
        period(report.halves, report.capacity)
    }
}

/// SIGTERM and SIGINT.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> Result<Self, Error> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
