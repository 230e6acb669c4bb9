//! Signals before the main loop.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use clap::Parser as _;
use nix::sys::signal::{Signal, raise};
use tokio::time::{sleep, timeout};

use super::*;
use crate::cli::{Cli, Command};

const USER: &str =
    "{ apiVersion: client.authentication.k8s.io/v1, command: PLUGIN, interactiveMode: Never }";

#[tokio::test]
async fn sigterm_ends_an_agent_whose_credential_plugin_hangs() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let (plugin, called, file) = (path("plugin"), path("called"), path("kubeconfig"));
    // It hangs until the test ends, since the runtime waits for its thread.
    let script = format!("#!/bin/sh\n: >{called}\nwhile test -e {called}; do sleep 0.1; done\n");
    fs::write(&plugin, script).expect("a plugin");
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).expect("permissions");
    let text = format!(
        "
clusters: [{{ name: c, cluster: {{ server: 'http://127.0.0.1:1' }} }}]
users: [{{ name: u, user: {{ exec: {} }} }}]
contexts: [{{ name: x, context: {{ cluster: c, user: u }} }}]
current-context: x
",
        USER.replace("PLUGIN", &plugin)
    );
    fs::write(&file, text).expect("a kubeconfig");
    let pins = path("bpf");
    let flags = ["--kubeconfig", &file, "--bpf-dir", &pins, "--oom-score-adj", "0"];
    let arguments = ["lb-agent", "run"].into_iter().chain(flags);
    let command = Cli::try_parse_from(arguments).expect("flags").command;
    let Command::Run(start) = command else { panic!("{command:?}") };
    let config = Config::load(&start.run).expect("a configuration");
    let signal = async {
        // The handlers exist before the plugin is called.
        while !fs::exists(&called).expect("a directory") {
            sleep(Duration::from_millis(10)).await;
        }
        raise(Signal::SIGTERM).expect("a signal");
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = timeout(Duration::from_secs(20), run(&start.run, config)) => ended,
        () = signal => panic!("it never ends"),
    };
    let ended = ended.expect("an end within the time limit of the plugin");
    assert!(matches!(ended, Ok(Outcome::Stop)), "{ended:?}");
}
