// SPDX-License-Identifier: Apache-2.0
//! A small network: 64 pixels, one hidden layer of ReLUs, softmax over ten classes; cross entropy, SGD with momentum.
//! Every operation is that of examples/cpp/digits_trainer/network.cpp, in the same order, so the losses are the same to
//! the last bit.
use crate::data::{CLASSES, PIXELS};
use crate::random::Random;

const HIDDEN: usize = 128;
const MOMENTUM: f32 = 0.9;

/// A fully connected layer with its gradient and its momentum: the weights input by input, then the biases.
struct Dense {
    outputs: usize,
    value: Vec<f32>,
    gradient: Vec<f32>,
    velocity: Vec<f32>,
}

impl Dense {
    fn new(inputs: usize, outputs: usize, random: &mut Random) -> Self {
        let (weights, parameters) = (inputs * outputs, inputs * outputs + outputs);
        // He's range for layers that feed ReLUs; biases stay zero.
        let limit = (6.0 / inputs as f32).sqrt();
        let mut value: Vec<f32> = (0..weights).map(|_| random.symmetric(limit)).collect();
        value.resize(parameters, 0.0);
        Dense { outputs, value, gradient: vec![0.0; parameters], velocity: vec![0.0; parameters] }
    }

    fn forward(&self, input: &[f32], output: &mut [f32]) {
        let (weights, biases) = self.value.split_at(input.len() * self.outputs);
        output.copy_from_slice(biases);
        for (x, weights) in input.iter().zip(weights.chunks_exact(self.outputs)) {
            for (sum, weight) in output.iter_mut().zip(weights) {
                *sum += x * weight;
            }
        }
    }

    /// Adds to the gradient; what the layer below needs goes to `input_gradient`.
    fn backward(&mut self, input: &[f32], output_gradient: &[f32], input_gradient: Option<&mut [f32]>) {
        let (weights, biases) = self.gradient.split_at_mut(input.len() * self.outputs);
        for (x, gradients) in input.iter().zip(weights.chunks_exact_mut(self.outputs)) {
            for (gradient, g) in gradients.iter_mut().zip(output_gradient) {
                *gradient += x * g;
            }
        }
        for (gradient, g) in biases.iter_mut().zip(output_gradient) {
            *gradient += g;
        }
        if let Some(input_gradient) = input_gradient {
            for (sum, weights) in input_gradient.iter_mut().zip(self.value.chunks_exact(self.outputs)) {
                *sum = 0.0;
                for (weight, g) in weights.iter().zip(output_gradient) {
                    *sum += weight * g;
                }
            }
        }
    }

    /// One step along the gradient, which is then zero again.
    fn step(&mut self, rate: f32, scale: f32) {
        let parameters = self.value.iter_mut().zip(&mut self.gradient).zip(&mut self.velocity);
        for ((value, gradient), velocity) in parameters {
            *velocity = MOMENTUM * *velocity - rate * scale * *gradient;
            *value += *velocity;
            *gradient = 0.0;
        }
    }
}

#[derive(Clone, Copy, Default)]
pub struct Score {
    /// Sum over the rows.
    loss: f64,
    correct: i64,
    rows: i64,
}

impl Score {
    pub fn add(&mut self, other: &Score) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.rows += other.rows;
    }

    pub fn mean_loss(&self) -> f64 {
        self.loss / self.rows as f64
    }

    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.rows as f64
    }
}

pub struct Network {
    lower: Dense,
    upper: Dense,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let lower = Dense::new(PIXELS, HIDDEN, &mut random);
        let upper = Dense::new(HIDDEN, CLASSES, &mut random);
        Network { lower, upper }
    }

    /// One step of SGD; the score is the one before it.
    pub fn learn(&mut self, images: &[f32], labels: &[i64], rate: f32) -> Score {
        let mut score = Score::default();
        let (mut hidden, mut hidden_gradient, mut probability) = ([0.0; HIDDEN], [0.0; HIDDEN], [0.0; CLASSES]);
        for (image, label) in images.chunks_exact(PIXELS).zip(labels) {
            score.add(&self.forward(image, *label, &mut hidden, &mut probability));
            // The gradient of the cross entropy of a softmax: the probabilities less the truth.
            probability[*label as usize] -= 1.0;
            self.upper.backward(&hidden, &probability, Some(&mut hidden_gradient));
            for (gradient, unit) in hidden_gradient.iter_mut().zip(&hidden) {
                if *unit <= 0.0 {
                    *gradient = 0.0;
                }
            }
            self.lower.backward(image, &hidden_gradient, None);
        }
        let scale = 1.0 / labels.len() as f32;
        self.lower.step(rate, scale);
        self.upper.step(rate, scale);
        score
    }

    pub fn evaluate(&self, images: &[f32], labels: &[i64]) -> Score {
        let mut score = Score::default();
        let (mut hidden, mut probability) = ([0.0; HIDDEN], [0.0; CLASSES]);
        for (image, label) in images.chunks_exact(PIXELS).zip(labels) {
            score.add(&self.forward(image, *label, &mut hidden, &mut probability));
        }
        score
    }

    /// Fills `hidden` and `probability` for one image and scores them.
    fn forward(&self, image: &[f32], label: i64, hidden: &mut [f32], probability: &mut [f32]) -> Score {
        self.lower.forward(image, hidden);
        for unit in hidden.iter_mut() {
            // Not max(): which of two zeros that gives is the compiler's choice.
            if *unit < 0.0 {
                *unit = 0.0;
            }
        }
        self.upper.forward(hidden, probability);

        // Softmax with the greatest value taken off first, so that no exponential overflows.
        let (mut guess, mut most) = (0, probability[0]);
        for (class, value) in probability.iter().enumerate() {
            if *value > most {
                (guess, most) = (class, *value);
            }
        }
        let mut sum = 0.0;
        for p in probability.iter_mut() {
            *p = (*p - most).exp();
            sum += *p;
        }
        for p in probability.iter_mut() {
            *p /= sum;
        }
        // A probability may round to zero; its logarithm must stay finite.
        let chosen = probability[label as usize].max(1e-30);
        Score { loss: -f64::from(chosen.ln()), correct: (guess as i64 == label).into(), rows: 1 }
    }
}
