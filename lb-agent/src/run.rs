//! The life of the agent: it takes in objects and links, writes operations to the maps and sweeps flows until it is
//! stopped.
//!
//! One loop owns the tracker, the mirror and the maps. Everything that may block or wait is a separate task. When the
//! loop ends, the data path stays as it is.

use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use crate::config::Config;
use crate::config::flags::Run;
use crate::datapath;
use crate::metrics::Numbers;
use crate::takeover;
use crate::tracker::Tracker;

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
mod host_stack;
mod inputs;
mod inspector;
mod kubernetes;
mod lost;
mod memory;
mod newcomers;
mod node_object;
mod open_connections;
mod reload;
mod servers;
mod service_manager;
mod service_maps;
mod sizes;
mod start;
mod state;
mod stop;
mod sweeper;
mod telemetry;
mod turns;
mod upkeep;
mod writer;

use agent::Agent;
pub use desired::{DesiredState, desired_state};
use devices::Devices;
use error::End;
pub use error::{Error, Outcome};
use growth::Growth;
pub use handover::{Handover, handed_over};
use host_stack::HostStack;
use inputs::{Inputs, Patience};
use inspector::Inspector;
pub use service_manager::take_priority;
use service_manager::take_resources;
use service_maps::ServiceMaps;
use start::{adopt, choose_sizes, follow_packet_log, load, start_servers};
pub use state::State;
use stop::Stop;
use sweeper::Sweeper;
use telemetry::Telemetry;
use turns::Turns;

/// Runs until SIGTERM or SIGINT, or until the configuration changes.
pub async fn run(options: &Run, config: Config) -> Result<Outcome, Error> {
    config.warnings.iter().for_each(|warning| warn!(warning, "configuration warning"));
    let config = Arc::new(config);
    let name = config.node();
    let mut paths = paths(options, &config);
    take_resources(&config.oom_score_adj);
    // From here on a signal does not end the process by itself, so each wait below watches for it.
    let mut stop = Stop::new()?;
    // Errors that show quickly come first. Then objects arrive while the programs are verified.
    let manifests = options.manifests.as_deref();
    let mut inputs = tokio::select! {
        inputs = Inputs::open(manifests, &config, &name) => inputs?,
        // A credential plugin may hang.
        () = stop.asked() => return Ok(Outcome::Stop),
    };
    tokio::select! {
        () = inputs.sync(Patience::of(manifests, &paths.bpf_dir)) => {}
        () = stop.asked() => return Ok(Outcome::Stop),
    }
    // The size of a map is fixed when it is created, so the objects are counted first.
    let (need, memory_problem) = choose_sizes(&mut paths, &inputs.tracker);
    let Some(mut datapath) = load(paths.clone(), &mut stop).await? else {
        return Ok(Outcome::Stop);
    };
    follow_packet_log(&mut datapath);
    let mut maps = datapath.maps()?;
    let began = Instant::now();
    // Rows in their grace period count as free from here on: `Datapath::load` has waited for the packets that were
    // under way when the earlier run ended.
    let reconciler = adopt(&mut maps, datapath.is_upgrading())?;
    let Inputs { tracker, events, views, view, kube_proxy, client } = inputs;
    // No interface has programs of this run yet: with its first rule the kernel moves local routes, and packets to the
    // node's own addresses have none for a moment (ADR 0027).
    let host_stack = HostStack::prepare(&config, tracker.context()).await;
    let numbers = Arc::new(Numbers::default());
    let devices =
        Devices::new(datapath, Arc::clone(&config), &maps, views.clone(), Arc::clone(&numbers))?;
    let shared = Arc::new(devices.maps()?);
    let service_maps =
        ServiceMaps::new(maps, reconciler, Arc::clone(&shared), Arc::clone(&numbers), began);
    let telemetry =
        Telemetry::new(&config, &name, numbers, view.clone(), kube_proxy.clone(), client);
    let inspector = Inspector::new(memory_problem);
    // The first packet that a program sees may be of a connection of kube-proxy, so these are known before (ADR 0031).
    let takeover = takeover::begin(Arc::clone(&shared)).await;
    start_servers(&config, &telemetry, kube_proxy, view, &shared).await?;
    let mut agent = Agent {
        began,
        tracker,
        service_maps,
        devices,
        is_upgraded: false,
        host_stack,
        telemetry,
        inspector,
        sweeper: Sweeper::new(shared, config.lifetimes()),
        growth: Growth::new(config.sizes()),
        takeover,
    };
    info!(node = name, bpf_dir = %paths.bpf_dir.display(), cgroup = %paths.cgroup.display(), "agent started");
    agent.begin();
    // The loop waits only for its next turn, so a changed configuration cuts no turn short.
    let (end, text) = tokio::select! {
        end = agent.work(Turns::new(events, views), &mut stop) => (end, config.text.clone()),
        text = reload::changed(options, config.text.as_deref(), &need) => (End::Changed, Some(text)),
    };
    agent.end(end);
    outcome(end, text.as_deref(), &agent.tracker)
}

/// Returns the directories and sizes of the data path, as configured.
fn paths(options: &Run, config: &Config) -> datapath::Options {
    datapath::Options {
        bpf_dir: config.bpf_dir.value.clone(),
        cgroup: config.cgroup(),
        sizes: config.sizes(),
        packet_log: options.packet_log,
    }
}

/// Returns the outcome of a run. `text`: the configuration for the next one.
fn outcome(end: End, text: Option<&str>, tracker: &Tracker) -> Result<Outcome, Error> {
    match end {
        End::Asked => Ok(Outcome::Stop),
        End::Changed => {
            let need = tracker.is_synced().then(|| tracker.demand());
            Ok(Outcome::Restart(Handover::of(text, need)))
        }
        End::Lost(what) => Err(Error::Lost(what)),
    }
}

#[cfg(test)]
mod tests;
