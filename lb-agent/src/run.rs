//! The agent's life: objects and links come in, operations go out, flows are swept, until somebody says stop.
//!
//! One loop owns the tracker, the book and the maps; everything that may block or wait is a task
//! beside it. Ending it leaves the data path as it is.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::cli;
use crate::config::Config;
use crate::datapath::{self, Datapath};
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::kube_events::Events;
use crate::manifests::{Manifests, ManifestsError};
use crate::maps;
use crate::metrics::kube_proxy::KubeProxy;
use crate::metrics::{self, Numbers};
use crate::program::{GRACE, Programmer};
use crate::snapshot::{Event, NodeContext, ViewHealth};
use crate::tracker::Tracker;
use crate::watch::client::{ClientError, Server};
use crate::watch::{ListMode, Watch};

mod agent;
mod devices;
mod intent;
mod kubernetes;
mod orphans;
mod servers;
mod service_manager;
mod state;
mod stop;
mod sweeper;
mod writer;

use agent::Agent;
use devices::Devices;
pub use intent::intent;
use kubernetes::Shown;
use orphans::Orphans;
use service_manager::{ServiceManager, take_resources};
pub(crate) use state::name;
pub use state::{Known, State, state_file};
use stop::Stop;
pub(crate) use sweeper::monotonic;
use writer::Writer;

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
