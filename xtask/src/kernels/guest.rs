//! A guest: a kernel, an in-memory file system with this clone's binaries at their own paths, and the output on its
//! console.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::packaged::Kernel;
use crate::test::SKIPPED;
use crate::test::binaries::Binary;
use crate::{shell, workspace};

/// The tools that the tests call, besides busybox.
const TOOLS: [&str; 4] = ["ip", "nsenter", "nft", "tc"];
/// The time limit in seconds for the programs and for each test file. A guest that takes longer hangs, even on a loaded
/// machine.
const PATIENCE: usize = 600;
/// The number of starts of a guest that does not reach its script: emulation with several threads sometimes executes an
/// instruction that the kernel is patching, and the kernel panics.
const STARTS: usize = 3;
/// The release of a guest that did not reach its script.
const NOT_BOOTED: &str = "did not boot";
/// The prefix of console lines that this runner reads.
const MARK: &str = "guest:";

/// A test program and its arguments.
pub(crate) struct Test {
    pub(crate) binary: Binary,
    pub(crate) arguments: &'static [&'static str],
}

/// The result of a kernel.
pub(crate) struct Outcome {
    /// The release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The instructions that its verifier walked for the longest program; 0 if it refused all.
    pub(crate) walked: u64,
    /// The stack bytes of the deepest program.
    pub(crate) stack: u64,
    /// The number of test files that passed, of those that ran, and of the skipped tests, as text.
    pub(crate) answers: String,
    /// Whether all programs were accepted, and all tests passed.
    pub(crate) is_good: bool,
}

impl Outcome {
    /// The result of a kernel that could not be fetched or booted.
    pub(crate) fn untried() -> Self {
        Self {
            release: NOT_BOOTED.to_owned(),
            walked: 0,
            stack: 0,
            answers: "-".to_owned(),
            is_good: false,
        }
    }

    /// Whether the guest reached its script.
    pub(crate) fn is_tried(&self) -> bool {
        self.release != NOT_BOOTED
    }
}

/// The root file system of a guest, and its kernel.
pub(crate) struct Guest<'a> {
    kernel: &'a Kernel,
    tests: &'a [Test],
    root: PathBuf,
}

impl<'a> Guest<'a> {
    /// Lays out the files.
    pub(crate) fn new(kernel: &'a Kernel, tests: &'a [Test]) -> Result<Self> {
        let root = workspace::target().join("kernels/root");
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
        }
        let guest = Self { kernel, tests, root };
        for directory in
            ["dev", "proc", "sys", "tmp", "run", "bin", "applets", "modules", "var/log"]
        {
            guest.directory(directory)?;
        }
        guest.programs()?;
        guest.modules()?;
        guest.write("init", &guest.script())?;
        Ok(guest)
    }

    /// Boots the guest, and reads its console until it ends.
    pub(crate) fn boot(&self) -> Result<Outcome> {
        let archive = self.root.with_extension("cpio");
        let mut pack = Command::new("sh");
        pack.current_dir(&self.root).args(["-c", r#"find . | busybox cpio -o -H newc >"$0""#]);
        drop(shell::output(pack.arg(&archive), "apt-get install busybox-static")?);
        for _ in 0..STARTS {
            let outcome = self.start(&archive)?;
            if outcome.is_tried() {
                return Ok(outcome);
            }
        }
        bail!("none of {STARTS} starts reached the script of the guest: see the console above")
    }

    /// Starts the guest once.
    fn start(&self, archive: &Path) -> Result<Outcome> {
        let mut qemu = Command::new("timeout");
        qemu.arg((PATIENCE * (1 + self.tests.len())).to_string())
            .args(["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-smp", "2"])
            .args(["-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt", "-m", "3072"])
            .args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"])
            .args(["-append", "console=ttyS0 quiet panic=-1 slab_nomerge", "-kernel"])
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(archive);
        // A guest that hangs ends by a signal, and its console shows where.
        let done = qemu.output().context("timeout\nremedy: apt-get install coreutils")?;
        let said = String::from_utf8_lossy(&done.stdout);
        let outcome = read(&said, self.tests.len());
        if !outcome.is_good {
            println!("{said}{}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(outcome)
    }

    fn programs(&self) -> Result<()> {
        let busybox =
            shell::find("busybox").context("busybox\nremedy: apt-get install busybox-static")?;
        self.copy(&busybox, Path::new("/bin/busybox"))?;
        symlink("busybox", self.root.join("bin/sh")).context("link of the shell")?;
        for tool in TOOLS {
            if let Some(file) = shell::find(tool) {
                self.program(&file)?;
            }
        }
        let built = workspace::target().join("debug");
        for name in ["lb-agent", "lb-test-differential", "lb-test-peer"] {
            self.program(&built.join(name))?;
        }
        self.tests.iter().try_for_each(|test| self.program(&test.binary.program))
    }

    /// Copies a program without symbols, together with its shared libraries.
    fn program(&self, file: &Path) -> Result<()> {
        let said = shell::output(Command::new("ldd").arg(file), "apt-get install libc-bin")?;
        let libraries: BTreeSet<&str> =
            said.split_whitespace().filter(|word| word.starts_with('/')).collect();
        libraries
            .iter()
            .try_for_each(|library| self.copy(Path::new(library), Path::new(library)))?;
        self.copy(file, file)?;
        let mut strip = Command::new("strip");
        shell::run(strip.arg(self.inside(file)), "apt-get install binutils")
    }

    fn modules(&self) -> Result<()> {
        let mut names = String::new();
        for (at, module) in self.kernel.modules.iter().enumerate() {
            let name = module.file_name().and_then(|name| name.to_str()).context("a module")?;
            let name = format!("modules/{at:03}-{name}");
            self.copy(module, Path::new(&name))?;
            if module.extension().is_some_and(|extension| extension == "xz") {
                shell::run(
                    Command::new("xz").arg("-d").arg(self.root.join(&name)),
                    "apt-get install xz-utils",
                )?;
            }
            names.extend(["busybox insmod /", name.trim_end_matches(".xz"), "\n"]);
        }
        self.write("modules/load", &names)
    }

    fn script(&self) -> String {
        let differential = workspace::target().join("debug/lb-test-differential");
        let mut script = format!(
            "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin:/applets HOME=/\n\
             busybox mount -t proc proc /proc\nbusybox --install -s /applets\nmount -t sysfs sys /sys\nmount -t devtmpfs dev /dev\n\
             mount -t bpf bpf /sys/fs/bpf\nmount -t cgroup2 cgroup /sys/fs/cgroup\nmount -t tmpfs tmp /tmp\n\
             mount -t tmpfs run /run\nip link set lo up\nsh /modules/load\n\
             echo \"{MARK} release $(uname -r)\"\n\
             {} survey\necho \"{MARK} survey $?\"\n",
            differential.display()
        );
        for Test { binary, arguments } in self.tests {
            let lines = format!(
                "mkdir -p {directory}\ncd {directory}\n{} {}\necho \"{MARK} test $? {}\"\n",
                binary.program.display(),
                arguments.join(" "),
                binary.name,
                directory = binary.directory.display(),
            );
            script.push_str(&lines);
        }
        // The power-off is asynchronous, and the kernel would panic if the first process ended before it.
        script + "echo o >/proc/sysrq-trigger\nread -r nothing\n"
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.root.join(name);
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        shell::run(Command::new("chmod").arg("755").arg(&file), "apt-get install coreutils")
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.inside(to);
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("directory {}", directory.display()))?;
        }
        fs::copy(from, &to).with_context(|| format!("copy {}", from.display()))?;
        Ok(())
    }

    fn directory(&self, name: &str) -> Result<()> {
        let directory = self.root.join(name);
        fs::create_dir_all(&directory).with_context(|| format!("directory {}", directory.display()))
    }

    /// The path in the guest for a path of this machine.
    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Reads a console: the lines with the prefix, and the figures of the programs.
fn read(said: &str, tests: usize) -> Outcome {
    // The firmware writes text without a line end before the first of these lines.
    let ours = |line: &'_ str| line.find(MARK).unwrap_or_default();
    let words = said.lines().map(|line| line[ours(line)..].split_whitespace().collect::<Vec<_>>());
    let mut outcome = Outcome::untried();
    let (mut is_verified, mut passed) = (false, 0);
    for line in words {
        match line.as_slice() {
            [MARK, "release", release] => (*release).clone_into(&mut outcome.release),
            [MARK, "survey", code] => is_verified = *code == "0",
            [MARK, "test", "0", _] => passed += 1,
            [_, walked, stack] => {
                if let (Ok(walked), Ok(stack)) = (walked.parse(), stack.parse()) {
                    outcome.walked = outcome.walked.max(walked);
                    outcome.stack = outcome.stack.max(stack);
                }
            }
            _ => {}
        }
    }
    let skipped = said.matches(SKIPPED).count();
    outcome.answers = match (is_verified, tests) {
        (false, _) => "refused".to_owned(),
        (true, 0) => "programs only".to_owned(),
        (true, tests) if skipped > 0 => format!("{passed} of {tests} files, {skipped} skipped"),
        (true, tests) => format!("{passed} of {tests} files"),
    };
    // The guest exists to test the kinds that this machine's kernel lacks; a kind that the guest lacks is a missing
    // module.
    outcome.is_good = is_verified && passed == tests && skipped == 0;
    outcome
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_console_says_the_largest_figures_and_whether_all_is_well() {
        let said =
            "boot\n[2Jguest: release 6.1.0\na 10 64\nb 20 32\nguest: survey 0\nguest: test 0 x\n";
        let outcome = read(said, 1);
        assert_eq!((outcome.walked, outcome.stack, outcome.is_good), (20, 64, true));
        assert!(!read(said, 2).is_good);
        let skipped = format!("{said}test bond ... skipped: no such kind\nok\n");
        assert!(!read(&skipped, 1).is_good, "nothing was tested there");
        assert!(!read("panic", 0).is_good);
    }
}
