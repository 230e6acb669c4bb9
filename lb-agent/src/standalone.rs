//! The verbs of the control plane without Kubernetes.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use lb_agent::cli::{KubeconfigVerb, Serve, start_log};
use lb_agent::syscall::raise_open_files;
use lb_control::files::Files;
use lb_control::identity::Identity;
use lb_control::serve::{Options, Running};
use lb_control::service::Ranges;
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

use crate::verbs::print;

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(options: &Serve) -> Result<ExitCode> {
    let log = start_log(options.log_format, options.verbosity).context("start the log")?;
    let ranges = Ranges::new(&options.service_cidr, options.node_port_range)?;
    let start = Options { data: options.data.clone(), listen: options.listen, ranges };
    // Each connection is an open file.
    if let Err(error) = raise_open_files() {
        warn!(%error, "limit of open files could not be raised");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let kubeconfig = options.data.join("admin.kubeconfig");
    runtime.block_on(async {
        let (mut terminated, mut interrupted) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let running = Running::start(start).await?;
        print(&format!(
            "serving https://{}\nexport KUBECONFIG={}\n",
            running.address,
            kubeconfig.display()
        ))?;
        let end = async move {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = interrupted.recv() => {}
            }
        };
        running.run(end).await;
        Ok::<_, anyhow::Error>(())
    })?;
    drop(log);
    Ok(ExitCode::SUCCESS)
}

/// Prints a kubeconfig for one of the roles.
pub(crate) fn kubeconfig(options: &KubeconfigVerb) -> Result<ExitCode> {
    let identity = match &options.role.node {
        Some(name) => Identity::Node(name.clone()),
        None if options.role.admin => Identity::Admin,
        None => Identity::Reader,
    };
    print(&Files::open(&options.data)?.kubeconfig(&identity)?)?;
    Ok(ExitCode::SUCCESS)
}
