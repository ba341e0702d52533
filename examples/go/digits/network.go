// SPDX-License-Identifier: Apache-2.0

// A small network: 64 pixels, a hidden layer of ReLUs, softmax over ten classes; cross entropy, SGD with momentum.

package main

import (
	"math"
	"math/rand"
)

const (
	hidden   = 128
	classes  = 10
	momentum = 0.9
)

// A dense layer: the weights input by input, then the biases.
type dense struct {
	outputs                   int
	value, gradient, velocity []float32
}

func newDense(inputs, outputs int, random *rand.Rand) *dense {
	parameters := (inputs + 1) * outputs
	d := &dense{outputs, make([]float32, parameters), make([]float32, parameters), make([]float32, parameters)}
	limit := math.Sqrt(6 / float64(inputs)) // He's range for layers that feed ReLUs; biases stay zero
	for i := range d.value[:inputs*outputs] {
		d.value[i] = float32((2*random.Float64() - 1) * limit)
	}
	return d
}

func (d *dense) forward(input, output []float32) {
	copy(output, d.value[len(input)*d.outputs:])
	for i, x := range input {
		for j, weight := range d.value[i*d.outputs:][:len(output)] {
			output[j] += x * weight
		}
	}
}

// backward adds to the gradient, and writes what the layer below needs, if there is one.
func (d *dense) backward(input, outputGradient, inputGradient []float32) {
	for i, x := range input {
		row := i * d.outputs
		for j, g := range outputGradient {
			d.gradient[row+j] += x * g
		}
		if inputGradient != nil {
			inputGradient[i] = 0
			for j, g := range outputGradient {
				inputGradient[i] += d.value[row+j] * g
			}
		}
	}
	for j, g := range outputGradient {
		d.gradient[len(input)*d.outputs+j] += g
	}
}

// step goes along the gradient, which is then zero again.
func (d *dense) step(rate float32) {
	for i, g := range d.gradient {
		d.velocity[i] = momentum*d.velocity[i] - rate*g
		d.value[i] += d.velocity[i]
		d.gradient[i] = 0
	}
}

// A Network classifies digits.
type Network struct{ lower, upper *dense }

// NewNetwork draws the weights.
func NewNetwork(seed int64) *Network {
	random := rand.New(rand.NewSource(seed))
	return &Network{newDense(pixels, hidden, random), newDense(hidden, classes, random)}
}

// Learn takes one step of SGD and returns the mean loss before it.
func (n *Network) Learn(images []float32, labels []int64, rate float32) float64 {
	var units, unitGradient [hidden]float32
	var chance [classes]float32
	loss := 0.0
	for row, label := range labels {
		image := images[row*pixels:][:pixels]
		n.classify(image, units[:], chance[:])
		loss -= math.Log(math.Max(float64(chance[label]), 1e-30))
		chance[label]-- // the gradient of the cross entropy of a softmax: the probabilities less the truth
		n.upper.backward(units[:], chance[:], unitGradient[:])
		for i, unit := range units {
			if unit <= 0 {
				unitGradient[i] = 0
			}
		}
		n.lower.backward(image, unitGradient[:], nil)
	}
	n.lower.step(rate / float32(len(labels)))
	n.upper.step(rate / float32(len(labels)))
	return loss / float64(len(labels))
}

// classify writes the probabilities of the classes and returns the most probable one.
func (n *Network) classify(image, units, chance []float32) int {
	n.lower.forward(image, units)
	for i, unit := range units {
		if unit < 0 {
			units[i] = 0
		}
	}
	n.upper.forward(units, chance)
	best, sum := 0, float32(0)
	for class, value := range chance {
		if value > chance[best] {
			best = class
		}
	}
	most := chance[best] // taken off first, so that no exponential overflows
	for class := range chance {
		chance[class] = float32(math.Exp(float64(chance[class] - most)))
		sum += chance[class]
	}
	for class := range chance {
		chance[class] /= sum
	}
	return best
}

// Accuracy returns the fraction of the held out digits that the network classifies.
func (n *Network) Accuracy(d *Digits) float64 {
	var image [pixels]float32
	var units [hidden]float32
	var chance [classes]float32
	correct := 0
	for _, digit := range d.order[:heldOut] {
		d.decode(image[:], digit, 0, 0)
		if n.classify(image[:], units[:], chance[:]) == int(d.labels[digit]) {
			correct++
		}
	}
	return float64(correct) / heldOut
}
