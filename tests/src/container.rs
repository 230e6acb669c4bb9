//! The agent's image as nodes run it: an OCI archive, a private containerd, and the part of a kubelet that runs the
//! pod.

mod containerd;
mod image;
mod kubelet;
mod mounts;

pub use containerd::Containerd;
pub use image::Image;
pub use kubelet::{Kubelet, Pod};
