//! TCP connections through a Service whose ends are both sockets of the test, and the ways in which they end.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::manifest::Service;
use crate::rig::Rig;
use crate::topology::{Family, Member, Pod};

/// The deadline for reads: a lost segment is retransmitted after doubling timeouts.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// The kernel's smallest retransmission timeout (`TCP_RTO_MIN`).
pub const USUAL_PATIENCE: Duration = Duration::from_millis(200);

/// A client, the frontend that it uses, and the server behind it.
#[derive(Debug)]
pub struct Path<'a> {
    /// The member that connects.
    pub client: &'a Member,
    /// The frontend.
    pub to: SocketAddr,
    /// The member that listens.
    pub server: &'a Member,
    listener: TcpListener,
}

impl<'a> Path<'a> {
    /// The paths of a Service with a `NodePort` to its only backend and target port: of a pod by its `ClusterIP`, and
    /// of the external client by its `NodePort`.
    pub fn all(
        rig: &'a Rig,
        (service, node_port): (&Service, u16),
        server: (&'a Pod, u16),
        family: Family,
    ) -> Result<[Self; 2]> {
        let outside = rig.node(0)?.addresses().socket(family, node_port);
        Self::to(rig, [service.frontend(family), outside], server, family)
    }

    /// The paths of the same clients to a pod's own address, by plain routing.
    pub fn plain(
        rig: &'a Rig,
        (server, target): (&'a Pod, u16),
        family: Family,
    ) -> Result<[Self; 2]> {
        let own = server.addresses().socket(family, target);
        Self::to(rig, [own; 2], (server, target), family)
    }

    fn to(
        rig: &'a Rig,
        [inside, outside]: [SocketAddr; 2],
        (server, target): (&'a Pod, u16),
        family: Family,
    ) -> Result<[Self; 2]> {
        let own = server.addresses().socket(family, target);
        let listener = server.home().run_in(|| TcpListener::bind(own))??;
        let pod = rig.pod(0, 0)?;
        let inside = Self { client: pod, to: inside, server, listener: listener.try_clone()? };
        Ok([inside, Self { client: rig.client(), to: outside, server, listener }])
    }

    /// Sets the smallest retransmission timeout of new sockets (Linux 6.11). On a busy machine a FIN would otherwise be
    /// sent twice, and the listener, whose connection is closed by then, would answer the second one with a reset.
    pub fn patient_ends(paths: &[Self], patience: Duration) -> Result<()> {
        let patience = patience.as_micros().to_string();
        for end in paths.iter().flat_map(|path| [path.client, path.server]) {
            end.netns().sysctl("net.ipv4.tcp_rto_min_us", &patience)?;
        }
        Ok(())
    }

    /// Opens a connection and sends a byte in each direction; returns both ends.
    pub fn connect(&self) -> Result<[TcpStream; 2]> {
        let to = self.to;
        let mut client =
            self.client.home().run_in(|| TcpStream::connect_timeout(&to, PATIENCE))??;
        let (mut server, _from) = self.listener.accept()?;
        let mut byte = [0];
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        client.write_all(b"?")?;
        server.read_exact(&mut byte)?;
        server.write_all(b"!")?;
        client.read_exact(&mut byte)?;
        Ok([client, server])
    }

    /// Opens a connection that both ends close at the same moment; each reads the other's end.
    pub fn both_close_at_once(&self) -> Result<()> {
        let [one, other] = &self.connect()?;
        let barrier = Barrier::new(2);
        let close = |end: &TcpStream| -> Result<usize> {
            let _is_leader = barrier.wait();
            end.shutdown(Shutdown::Write)?;
            rest(end)
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| close(other));
            let one = close(one);
            other.join().map_err(|_panic| anyhow!("an end ended early"))?.and(one)
        })
        .with_context(|| format!("{}", self.to))
        .map(drop)
    }

    /// Opens a connection whose client half-closes after a byte, and reads an answer of `size` bytes afterwards.
    pub fn half_close(&self, size: usize) -> Result<()> {
        let read = self.download(size).with_context(|| format!("{}", self.to))?;
        ensure!(read == size, "{}: {read} bytes of {size}", self.to);
        Ok(())
    }

    fn download(&self, size: usize) -> Result<usize> {
        let [client, server] = self.connect()?;
        client.shutdown(Shutdown::Write)?;
        let answer = |mut server: TcpStream| -> Result<usize> {
            let rest = rest(&server)?;
            server.write_all(&vec![b'.'; size])?;
            Ok(rest)
        };
        thread::scope(|scope| {
            let asked = scope.spawn(|| answer(server));
            let read = rest(&client)?;
            let _asked: usize =
                asked.join().map_err(|_panic| anyhow!("the server ended early"))??;
            Ok(read)
        })
    }

    /// The number of resets that both hosts have sent so far.
    pub fn resets(&self) -> Result<u64> {
        Ok(resets(self.client)? + resets(self.server)?)
    }
}

/// The counter `OutRsts` (RFC 4022), for both families.
pub fn resets(member: &Member) -> Result<u64> {
    Ok(member.netns().counter("snmp", "Tcp OutRsts")?.cast_unsigned())
}

/// Reads until the other end has closed; returns the number of bytes.
pub fn rest(mut stream: &TcpStream) -> Result<usize> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("the rest")
}
