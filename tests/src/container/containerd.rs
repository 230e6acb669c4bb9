//! A containerd with its own root, state directory and socket; its containers end with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::image::Image;
use crate::process::{Home, Program, output, run};
use crate::wait::{try_wait_until, wait_until_ok};

/// The deadline for its first answer; it loads its plug-ins first.
const START: Duration = Duration::from_mins(1);
/// The deadline for the end of a killed process.
const END: Duration = Duration::from_secs(30);
/// The root of the container cgroups, in each hierarchy of the machine.
const CGROUPS: &str = "/sys/fs/cgroup";
/// A snapshotter that copies layers instead of mounting overlays, so that it works on any file system.
const SNAPSHOTTER: &str = "native";

/// The parameters of a container.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: String,
    /// The flags for `ctr run`.
    pub(super) flags: Vec<String>,
    /// The program and its arguments.
    pub(super) words: Vec<String>,
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    program: Program,
    home: Home,
    directory: PathBuf,
    /// The containerd namespace of its objects, and the name of their cgroup.
    namespace: String,
}

impl Containerd {
    /// Starts a containerd that keeps all its files in `directory`, as a process of `home`.
    pub fn start(directory: &Path, home: &Home) -> Result<Self> {
        let directory = directory.join("containerd");
        fs::create_dir_all(&directory)
            .with_context(|| format!("directory {}", directory.display()))?;
        let place = |name: &str| directory.join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {:?}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {:?}\n",
            place("root"),
            place("state"),
            place("socket"),
            place("opt"),
        );
        let file = directory.join("config.toml");
        fs::write(&file, config).with_context(|| format!("file {}", file.display()))?;
        let mut command = home.command(Path::new("containerd"))?;
        command.arg("--config").arg(&file);
        let program = Program::spawn("containerd", command, &directory.join("log"))
            .context("remedy: cargo xtask setup")?;
        let namespace = format!("lb-test-{}", process::id());
        let mut containerd = Self { program, home: home.clone(), directory, namespace };
        containerd.wait_ready()?;
        Ok(containerd)
    }

    fn wait_ready(&mut self) -> Result<()> {
        try_wait_until(START, "containerd answers", || {
            self.program.ensure_running()?;
            Ok(self.ctr(&["version"]).ok().map(drop))
        })
    }

    /// Runs ctr and returns its output.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        run(&mut self.prepared(arguments)?, "")
    }

    fn prepared(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.home.command(Path::new("ctr"))?;
        command.arg("--address").arg(self.directory.join("socket"));
        command.args(["--namespace", &self.namespace]).args(arguments);
        Ok(command)
    }

    /// Imports an image, and fails unless it has the name that it claims.
    pub fn import(&self, image: &Image) -> Result<()> {
        let archive = image.archive().display().to_string();
        drop(self.ctr(&["images", "import", "--snapshotter", SNAPSHOTTER, &archive])?);
        let names = self.ctr(&["images", "list", "--quiet"])?;
        ensure!(names.lines().any(|name| name == image.name()), "ctr imported {names}");
        Ok(())
    }

    /// Runs a container to its end, and returns its exit code and its output.
    pub(super) fn run_to_end(&self, image: &Image, task: &Task) -> Result<(i32, String)> {
        let mut command = self.prepared(&["run", "--rm"])?;
        let output = output(self.complete(&mut command, image, task), "")?;
        let said = [output.stdout, output.stderr].concat();
        let code = output.status.code().context("ctr ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&said).into_owned()))
    }

    /// Starts a container whose output goes to a file.
    pub(super) fn start_container(&self, image: &Image, task: &Task) -> Result<()> {
        let mut command = self.prepared(&["run", "--detach"])?;
        let log = self.log(&task.id);
        command.arg(format!("--log-uri=file://{}", log.display()));
        run(self.complete(&mut command, image, task), "").map(drop)
    }

    fn complete<'a>(
        &self,
        command: &'a mut Command,
        image: &Image,
        task: &Task,
    ) -> &'a mut Command {
        let runc = self.directory.join("runc").display().to_string();
        let ours = ["--snapshotter", SNAPSHOTTER, "--runc-root", &runc];
        command.args(ours).args(&task.flags).args([image.name(), &task.id]).args(&task.words)
    }

    /// Returns the file with the output of a container.
    pub(super) fn log(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.log"))
    }

    /// Returns the process id of a container, if it runs.
    pub(super) fn process(&self, id: &str) -> Result<Option<u32>> {
        let tasks = self.ctr(&["tasks", "list"])?;
        let row = tasks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.first() == Some(&id));
        match row.as_deref() {
            Some([_, process, "RUNNING"]) => Ok(Some(process.parse()?)),
            Some([_, _, "STOPPED"]) | None => Ok(None),
            Some(other) => bail!("container {id} is {other:?}"),
        }
    }

    /// Sends a signal to a container, waits until it has ended, and removes it; returns its exit code.
    pub(super) fn end(&self, id: &str, signal: &str) -> Result<i32> {
        if self.process(id)?.is_some() {
            drop(self.ctr(&["tasks", "kill", "--signal", signal, id])?);
        }
        wait_until_ok(END, &format!("container {id} ends"), || {
            ensure!(self.process(id)?.is_none(), "it runs");
            Ok(())
        })?;
        // `ctr tasks delete` exits with the exit code of the task.
        let code = output(&mut self.prepared(&["tasks", "delete", id])?, "")?.status.code();
        drop(self.ctr(&["containers", "delete", id])?);
        code.context("ctr ended by a signal")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let containers = self.ctr(&["containers", "list", "--quiet"]).unwrap_or_default();
        for id in containers.lines() {
            drop(self.end(id, "SIGKILL"));
        }
        drop(self.program.terminate());
        let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
        let hierarchies = hierarchies.map(|entry| entry.path()).chain([CGROUPS.into()]);
        for hierarchy in hierarchies {
            // Succeeds only for an existing and empty cgroup.
            drop(fs::remove_dir(hierarchy.join(&self.namespace)));
        }
    }
}
