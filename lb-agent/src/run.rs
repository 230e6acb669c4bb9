//! The life of the agent: it takes in objects and links, writes operations to the maps and sweeps flows until it is
//! stopped.
//!
//! One loop owns the tracker, the mirror and the maps. Everything that may block or wait is a separate task. When the
//! loop ends, the data path stays as it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::config::flags::Run;
use crate::datapath;
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::kube_events::Events;
use crate::metrics::Numbers;
use crate::metrics::kube_proxy::KubeProxy;
use crate::node;
use crate::node::host::conntrack::{Raise, Timeouts};
use crate::node::host::{EarlierLoopback, FrontendNetworks};
use crate::plan::Family;
use crate::reconcile::Reconciler;
use crate::snapshot::ViewHealth;
use crate::state_file::{conntrack_file, loopback_file};
use crate::takeover;

mod accelerator;
mod agent;
mod checks;
mod desired;
mod devices;
mod early_drops;
mod error;
mod grace_clock;
mod growth;
mod handover;
mod kubernetes;
mod lost;
mod memory;
mod newcomers;
mod node_object;
mod open_connections;
mod reload;
mod servers;
mod service_manager;
mod sizes;
mod start;
mod state;
mod stop;
mod sweeper;
mod turns;
mod upkeep;
mod writer;

use agent::Agent;
use checks::Checks;
pub use desired::{DesiredState, desired_state};
use devices::Devices;
use early_drops::EarlyDrops;
use error::End;
pub use error::{Error, Outcome};
use grace_clock::GraceClock;
use growth::Growth;
pub use handover::{Handover, handed_over};
use kubernetes::Reporter;
use node_object::NodeObject;
use open_connections::OpenConnections;
use servers::Unbound;
pub use service_manager::take_priority;
use service_manager::{ServiceManager, take_resources};
use start::{
    FIRST_LISTS, LISTS, READING, choose_sizes, lists, load, start_servers, start_source, tracker,
};
pub use state::State;
use stop::Stop;
use turns::Turns;
use writer::Writer;

/// Runs until SIGTERM or SIGINT, or until the configuration changes.
#[expect(clippy::too_many_lines, reason = "wiring, from top to bottom")]
pub async fn run(options: &Run, config: Config) -> Result<Outcome, Error> {
    config.warnings.iter().for_each(|warning| warn!(warning, "configuration warning"));
    let config = Arc::new(config);
    let name = config.node();
    let mut paths = datapath::Options {
        bpf_dir: config.bpf_dir.value.clone(),
        cgroup: config.cgroup(),
        sizes: config.sizes(),
        packet_log: options.packet_log,
    };
    take_resources(&config.oom_score_adj);
    let mut stop = Stop::new()?;
    // Errors that show quickly come first. Then objects arrive while the programs are verified.
    let view = ViewHealth::default();
    let (sender, mut events) = mpsc::channel(4_096);
    let kube_proxy = KubeProxy::default();
    let (shows, views) = watch::channel(None);
    drop(tokio::spawn(node::watch::run(shows)));
    let (manifests, own) = (options.manifests.as_deref(), Some(views.clone()));
    let source = start_source(manifests, &config, &name, &view, &kube_proxy, sender, own);
    let client = tokio::select! {
        client = source => client?,
        // A credential plugin may hang.
        () = stop.asked() => return Ok(Outcome::Stop),
    };
    let mut tracker = tracker(&config, &name);
    let has_maps = datapath::maps_directory(&paths.bpf_dir).exists();
    let patience = match (&options.manifests, has_maps) {
        // A directory is always read completely; there is no server to wait for.
        (Some(_), _) => READING,
        (None, true) => LISTS,
        (None, false) => FIRST_LISTS,
    };
    tokio::select! {
        () = lists(&mut tracker, &mut events, patience) => {}
        () = stop.asked() => return Ok(Outcome::Stop),
    }
    // The size of a map is fixed when it is created, so the objects are counted first.
    let (need, memory_problem) = choose_sizes(&mut paths, &tracker);
    let Some(mut datapath) = load(paths.clone(), &mut stop).await? else {
        return Ok(Outcome::Stop);
    };
    if let Some(records) = datapath.take_packet_log() {
        drop(tokio::spawn(records.follow()));
    }
    let mut maps = datapath.maps()?;
    let began = Instant::now();
    lost::replace(&mut maps, datapath.is_upgrading())?;
    let actual = maps.actual()?;
    // Adopted rows must be in the filters, or the programs would not look their packets up.
    maps.mark_endpoints(&actual.backends)?;
    let reconciler = Reconciler::adopt(maps.limits()?, actual, Duration::ZERO);
    let needs_v6 = tracker.context().ip(Family::V6).is_some();
    let (frontends, unsaved_loopback) = prepare_host_stack(&config, needs_v6).await;
    let numbers = Arc::new(Numbers::default());
    let devices =
        Devices::new(datapath, Arc::clone(&config), &maps, views.clone(), Arc::clone(&numbers))?;
    let shared = Arc::new(devices.maps()?);
    let health = Health::new(config.patience());
    let mut agent = Agent {
        began,
        clock: GraceClock::started(began),
        tracker,
        reconciler,
        writer: Writer::new(maps),
        open: OpenConnections::new(Arc::clone(&shared)),
        devices,
        health: health.clone(),
        reporter: Reporter {
            checks: Checks::new(HealthChecks::new(health)),
            events: client.map(|client| Events::start(client, &name)).unwrap_or_default(),
            metrics: kube_proxy.clone(),
            refused: BTreeSet::new(),
            losers: BTreeSet::new(),
            node: Box::default(),
            sync_due: None,
        },
        numbers,
        state: State::at(&paths.bpf_dir, &name, view.clone()),
        manager: ServiceManager::of_environment(),
        inspected: Instant::now(),
        is_programmed: false,
        is_upgraded: false,
        frontends,
        frontends_are_due: true,
        unsaved_loopback,
        lifetimes: config.lifetimes(),
        sweep_skips: 0,
        early_drops: EarlyDrops::default(),
        node_object: NodeObject::default(),
        unbound: Unbound::default(),
        takeover: takeover::begin(Arc::clone(&shared)).await,
        configured_sizes: config.sizes(),
        growth: Growth::new(),
        memory_problem,
    };
    start_servers(&config, &agent, kube_proxy, view, &shared).await?;
    info!(node = name, bpf_dir = %paths.bpf_dir.display(), cgroup = %paths.cgroup.display(), "agent started");
    agent.reporter.events.node("Starting", String::new());
    agent.begin();
    let (end, text) = tokio::select! {
        end = agent.work(Turns::new(events, views), shared, &mut stop) => (end, config.text.clone()),
        text = reload::changed(options, config.text.as_deref(), &need) => (End::Changed, Some(text)),
    };
    // Links stay pinned, so ending the agent changes nothing for packets. The inspection restores pins that were
    // removed a moment ago: without them the links would end with this process.
    agent.inspect();
    agent.manager.ends(end);
    agent.write_state();
    let restarts = end == End::Changed;
    if agent.devices.unpinned_since().is_some() {
        warn!(restarts, "agent stopping; its programs end with it, because their pins are missing");
    } else {
        info!(restarts, "agent stopping; data path stays active");
    }
    match end {
        End::Asked => Ok(Outcome::Stop),
        End::Changed => {
            let need = agent.tracker.is_synced().then(|| agent.tracker.demand());
            Ok(Outcome::Restart(Handover::of(text.as_deref(), need)))
        }
        End::Lost(what) => Err(Error::Lost(what)),
    }
}

/// Configures the stack for packets of this host's processes, now and after changes. A failure is logged; everything
/// else is served. Returns the sender of the frontends, and the problem that cleanup could not restore everything.
async fn prepare_host_stack(
    config: &Config,
    needs_v6: bool,
) -> (watch::Sender<Option<FrontendNetworks>>, watch::Receiver<Option<String>>) {
    let (mut earlier, unsaved) = EarlierLoopback::new(loopback_file(&config.bpf_dir.value));
    let serves_loopback = config.localhost_node_ports.value;
    // The programs send packets of this host's processes to that interface.
    if let Err(error) = node::host::open_loopback(&mut earlier, serves_loopback, needs_v6).await {
        let error = crate::chain(&error);
        warn!(error, "packets of host processes may not be served yet; retrying");
    }
    if let Err(error) = node::host::prepare_routing().await {
        // The rule is added with the first route.
        debug!(error = crate::chain(&error), "the rule for routes to frontends is not there yet");
    }
    let timeouts =
        Timeouts { record: conntrack_file(&config.bpf_dir.value), lifetimes: config.lifetimes() };
    // Before the first status, which would name the timeouts as a problem.
    timeouts.raise().iter().for_each(Raise::log);
    let (sender, receiver) = watch::channel(None);
    drop(tokio::spawn(node::host::follow(receiver, earlier, serves_loopback, timeouts)));
    (sender, unsaved)
}

#[cfg(test)]
mod tests;
