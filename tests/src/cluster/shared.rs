//! One cluster for the tests of a file: its control plane starts once; agents and objects come and go with each test.
//!
//! The cluster is never dropped: its processes end with the test process, and the janitor of the topology removes the
//! rest.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use anyhow::Result;

use super::Cluster;
use crate::join_all::locked;
use crate::topology::Shape;

/// Clusters that no test uses at the moment, without agents, and without Services, slices and pods of tests.
static IDLE: Mutex<Vec<(Shape, Cluster)>> = Mutex::new(Vec::new());
/// Arguments of kubectl that delete Services, slices and pods in the namespace `default`. The objects of the API server
/// have the name `kubernetes`.
const OBJECTS: [&str; 6] = [
    "delete",
    "services,endpointslices,pods",
    "--field-selector=metadata.name!=kubernetes",
    // No kubelet confirms that a pod has ended.
    "--force",
    "--grace-period=0",
    "--wait=false",
];

/// A cluster for one test. Unless the test gives it back, it ends with the test, and the next test starts another.
#[derive(Debug)]
pub struct Shared {
    shape: Shape,
    cluster: Cluster,
}

impl Cluster {
    /// Returns a cluster without agents that an earlier test of this process gave back, or starts one.
    pub fn shared_without_agents(shape: Shape) -> Result<Shared> {
        let found = taken(shape);
        let cluster = found.map_or_else(|| Self::without_agents(shape), Ok)?;
        Ok(Shared { shape, cluster })
    }

    /// Returns such a cluster with an agent on each node.
    pub fn shared(shape: Shape) -> Result<Shared> {
        let mut shared = Self::shared_without_agents(shape)?;
        shared.start_agents()?;
        Ok(shared)
    }
}

impl Shared {
    /// Gives the cluster to the next test. The test must leave the nodes and the control plane unchanged, except for
    /// Services, slices and pods.
    ///
    /// # Errors
    ///
    /// If an agent ends with an error, or its data path or the objects cannot be removed.
    pub fn give_back(self) -> Result<()> {
        let Self { shape, mut cluster } = self;
        cluster.rig.clear_agents()?;
        drop(cluster.control_plane.kubectl(&OBJECTS)?);
        locked(&IDLE).push((shape, cluster));
        Ok(())
    }
}

impl Deref for Shared {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

fn taken(shape: Shape) -> Option<Cluster> {
    let mut idle = locked(&IDLE);
    let at = idle.iter().position(|(its, _)| *its == shape)?;
    Some(idle.swap_remove(at).1)
}
